"""What `attach` is given, in one process: read, refused in one line, or idle."""

import re
from collections.abc import Callable
from functools import partial
from inspect import signature

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.scaled import scale_from
from gradwire.integrations.framework import attach_whole


def test_one_process_has_an_idle_handle_whatever_the_model():
    model = nn.Linear(3, 4)
    for each in (model, torch.compile(model, backend="eager")):
        handle = gw.attach(each, gw.TopK(0.1))
        assert handle.plan is None
        assert handle.stats().steps == 0
        assert "idle" in repr(handle)
        handle.load_state_dict(handle.state_dict(all_ranks=True))
        handle.detach()


def test_words_of_the_command_line_are_read():
    choices = StepChoices.of("topk:0.01+residual:0.9+allgather@25mb", controller=None)
    assert (choices.compressor, choices.memory) == (gw.TopK(0.01), gw.Residual(0.9))
    assert (choices.communicator, choices.groups) == (gw.AllGather(), gw.groups.of(megabytes=25))
    assert gw.attach(nn.Linear(3, 4), "powersgd:2").plan is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"compressor": "tpok:0.1"}, "there is no compressor 'tpok': did you mean topk"),
        ({"compressor": "topk:0.1+residual", "memory": gw.Residual()}, "memory= something else; keep one"),
        ({"compressor": gw.TopK}, r"is a class; pass an object, such as compressor=gw.TopK\(0.01\)"),
        ({"compressor": 0.01}, "is no Compressor"),
        ({"compressor": gw.TopK(0.1), "memory": gw.Residual}, "is a class; pass an object"),
        ({"compressor": gw.TopK(0.1), "communicator": "allgather"}, "is no Communicator"),
        ({"compressor": gw.TopK(0.1), "dense": 3}, "is no function"),
        ({"compressor": gw.TopK(0.1), "seed": "x"}, "is no int"),
        ({"compressor": gw.TopK(0.1), "scaler": 2.0}, "is no GradScaler"),
        ({"compressor": gw.TopK(0.1), "transport": "gloo"}, "is no Transport"),
        ({"candidates": gw.TopK(0.1)}, "is no list"),
        ({"compressor": gw.TopK(0.1), "communicator": gw.AllReduce()}, "cannot be added"),
    ],
)
def test_what_cannot_be_is_one_clear_line(arguments: dict, why: str):
    with pytest.raises(ValueError, match=why) as error:
        gw.attach(nn.Linear(3, 4), **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", [3, nn.Linear, None])
def test_what_is_no_model_is_named(model: object):
    with pytest.raises(ValueError, match=r"DistributedDataParallel\(model\)"):
        gw.attach(model, gw.TopK(0.1))  # pyright: ignore


@pytest.mark.parametrize(
    ("wrapper", "instead"),
    [
        ("deepspeed.runtime.engine.DeepSpeedEngine", "gradwire.integrations.deepspeed.attach(engine,"),
        ("megatron.core.distributed.distributed_data_parallel.DistributedDataParallel",
         "gradwire.integrations.megatron.attach(ddp,"),
        ("torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel", "fully_shard(model)"),
        ("torchft.ddp.DistributedDataParallel", "gradwire.integrations.torchft.Optimizer"),
        ("torchft.ddp.PureDistributedDataParallel", "gradwire.integrations.torchft.Optimizer"),
        ("lightning.fabric.wrappers._FabricModule", "gw.attach(model._forward_module,"),
        ("lightning_fabric.wrappers._FabricModule", "gw.attach(model._forward_module,"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("attach", [gw.attach, partial(attach_whole, options={})])
def test_a_wrapper_of_another_library_is_told_its_own_call(attach: Callable, wrapper: str, instead: str):
    module, _, name = wrapper.rpartition(".")
    kind = type(name, (nn.Sequential,), {"__module__": module})
    for model in (kind(nn.Linear(3, 4)), type("Derived", (kind,), {})(nn.Linear(3, 4))):
        with pytest.raises(ValueError, match=rf"does not take .*'s {name}; use {re.escape(instead)}") as error:
            attach(model, compressor=gw.TopK(0.1))
        assert "\n" not in str(error.value)


DDP_OPTIONS = {
    "self", "module", "device_ids", "output_device", "dim", "check_reduction",  # of no concern to gradients
    "broadcast_buffers", "forward_sync_buffers", "init_sync",  # DDP's own
    "process_group", "device_mesh",  # the ranks that exchange
    "bucket_cap_mb", "bucket_cap_mb_list", "gradient_as_bucket_view",  # means go where gradients lie in any bucket
    "lazy_bucket_allocation",  # buckets are freed after each step, so none has a fixed place
    "find_unused_parameters", "static_graph", "batched_grad_copy",  # say how gradients are seen
    "delay_all_reduce_named_params", "param_to_hook_all_reduce",  # DDP reduces these itself, as status() says
    "mixed_precision", "skip_all_reduce_unused_params",  # refused
}  # fmt: skip


def test_no_option_of_ddp_is_ignored_for_it_is_new():
    assert {*signature(DistributedDataParallel.__init__).parameters} <= DDP_OPTIONS


AUTO, LIST = {"controller": gw.Auto([gw.TopK(0.1)])}, [("*.bias", [gw.FP32(), gw.BF16()])]
NAMED = {
    "dense": (lambda name, p: "bias" in name, r"rules=\[\('\*\.embedding\.\*', gw\.FP32\(\)\), \('\*', 'auto'\)\]"),
    "groups": (gw.groups.of(megabytes=25), "leave groups= out, or name the compressor"),
    "memory": (gw.Residual(dtype=torch.bfloat16), r"candidates=\[gw\.Group\(\(\), gw\.TopK"),
    "communicator": (gw.AllGather(), r"candidates=\[gw\.Group\(\(\), gw\.TopK"),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    "plan",
    [{}, {"candidates": [gw.TopK(0.1)]}, {"compressor": gw.FP32()} | AUTO],
    ids=["default", "candidates", "controller"],
)
def test_what_the_automatic_plan_would_ignore_is_refused(name: str, plan: dict):
    value, instead = NAMED[name]
    with pytest.raises(ValueError, match=rf"^{name}=.* automatic plan.*{instead}") as error:
        gw.attach(nn.Linear(3, 4), **plan, **{name: value})
    assert len(str(error.value)) <= 250


def test_under_rules_with_lists_memory_and_communicator_are_those_of_the_named_compressor():
    options = {"memory": gw.Residual(0.9), "communicator": gw.AllGather()}
    choices = StepChoices.of(gw.TopK(0.1), rules=LIST, **options)
    choices.check()
    assert choices.by_layer[-1].candidates == (gw.Group((), gw.TopK(0.1), *options.values()),)
    for name in ("dense", "groups"):
        with pytest.raises(ValueError, match=f"^{name}=.* automatic plan"):
            StepChoices.of(gw.TopK(0.1), rules=LIST, **{name: NAMED[name][0]}).check()


def test_rules_that_auto_does_not_have_are_refused():
    with pytest.raises(
        ValueError,
        match=r"^rule '\*\.bias' is none of Auto's, which would plan by its own alone.* attach\(ddp, rules=\[",
    ) as error:
        StepChoices.of(gw.FP32(), rules=[("*.bias", gw.FP32())], **AUTO).try_out(
            dict(nn.Linear(3, 4).named_parameters())
        )
    assert len(str(error.value)) <= 250


def test_a_losss_scale_that_has_become_zero_is_named():
    """After some 165 overflows in a row."""
    scaler = torch.amp.GradScaler("cpu", init_scale=0.0)
    scaler.scale(torch.zeros(()))
    with pytest.raises(ValueError, match="scale has become 0: all steps overflow"):
        scale_from(scaler)()
