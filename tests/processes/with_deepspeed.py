"""Trainings under DeepSpeed on CPUs: scenarios as in `scenarios`."""

import logging
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["DS_ACCELERATOR"] = "cpu"  # before DeepSpeed looks for GPUs

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gradwire as gw
from gradwire.integrations import deepspeed_engine
from gradwire.integrations.deepspeed import attach
from tests.processes.scenarios import batch, flat, freeze, network, refused, same_on_all_ranks, scenario
from tests.support.states import residual_of

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
ADAM = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}
ZERO1, BF16 = {"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 18, "hysteresis": 1}}
OFFLOAD = {
    "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
CONFIGURATIONS = [
    {}, ZERO1, {"gradient_accumulation_steps": 3}, {**ZERO1, "gradient_accumulation_steps": 3},
    {**ZERO1, "gradient_accumulation_steps": 3, "managed_gradient_accumulation": False},
    {"zero_optimization": {"stage": 1, "contiguous_gradients": False, "reduce_scatter": False}},
    {"zero_optimization": {"stage": 1, "reduce_bucket_size": 500}},
]  # fmt: skip


def engine_of(configuration: dict[str, Any], model: nn.Module | None = None, **options: Any) -> Any:
    """An engine of `network()` on all ranks, with DeepSpeed's Adam, or the `optimizer` that is given."""
    model = model or network()
    common = {"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.5}
    common |= {} if options else {"optimizer": ADAM}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config={**common, **configuration}, **options
    )
    return engine


def train(engine: Any, steps: int = 5, first: int = 0, torch_style: bool = False) -> None:
    micro = engine.gradient_accumulation_steps()
    for number in range(first * micro, steps * micro):
        inputs, targets = batch(number)
        loss = cross_entropy(engine(inputs.to(next(engine.parameters()).dtype)).float(), targets)
        if torch_style:
            loss.backward()
        else:
            engine.backward(loss)
        if engine.managed_gradient_accumulation() or (number + 1) % micro == 0:
            engine.step()


def trained(configuration: dict[str, Any], compressor: Any = None, **options: Any) -> Tensor:
    engine = engine_of(configuration, **options)
    if compressor is not None:
        attach(engine, compressor)
    train(engine)
    assert same_on_all_ranks(flat(engine.module))
    return flat(engine.module)


@scenario(2, 3)
def dense_means_train_as_deepspeed_does() -> None:
    for configuration in CONFIGURATIONS:
        own, ours = trained(configuration), trained(configuration, gw.FP32())
        # with two ranks the order of a sum does not matter
        within = {"rtol": 0, "atol": 0} if dist.get_world_size() == 2 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(ours, own, **within, msg=lambda text, at=configuration: f"{at}: {text}")


@scenario(2)
def backward_passes_that_are_coalesced_count_as_one() -> None:
    after = []
    for compressor in (None, gw.FP32()):
        engine = engine_of(ZERO1)
        if compressor:
            attach(engine, compressor)
        for step in range(3):
            with engine.coalesce_grad_reduction():
                for number in (2 * step, 2 * step + 1):
                    inputs, targets = batch(number)
                    engine.backward(cross_entropy(engine(inputs), targets))
            engine.step()
        after.append(flat(engine.module))
    assert same_on_all_ranks(after[1])
    torch.testing.assert_close(after[1], after[0], rtol=0, atol=0)


@scenario(2)
def dense_means_train_as_deepspeed_does_with_its_optimizer_on_the_host() -> None:
    model, other = network(), network()
    own = trained(OFFLOAD, model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
    ours = trained(OFFLOAD, gw.FP32(), model=other, optimizer=torch.optim.AdamW(other.parameters(), lr=0.01))
    torch.testing.assert_close(ours, own, rtol=0, atol=0)


@scenario(2)
def mixed_precision_trains_as_deepspeed_does() -> None:
    for configuration in (BF16, {**BF16, **ZERO1}, {**FP16, **ZERO1}):
        own, ours = engine_of(configuration), engine_of(configuration)
        attach(ours, gw.FP32())
        first = flat(own.module)
        train(own)
        train(ours)
        assert own.skipped_steps == ours.skipped_steps
        assert (own.skipped_steps > 0) == own.fp16_enabled()
        # DeepSpeed sums 16-bit numbers
        assert (flat(ours.module) - flat(own.module)).abs().max() < 0.1 * (flat(own.module) - first).abs().max()


@scenario(2)
def memories_know_nothing_of_loss_scales() -> None:
    kept = []
    for power in (8, 13):
        fp16 = {"enabled": True, "initial_scale_power": power, "loss_scale_window": 2}
        engine = engine_of({"fp16": fp16, **ZERO1})
        handle = attach(engine, "topk:0.1")
        train(engine)
        kept.append((flat(engine.module), residual_of(handle)))
    assert kept[0][1].any()
    torch.testing.assert_close(kept[0], kept[1], rtol=0, atol=0)


@scenario(2)
def a_step_that_overflows_leaves_memories_as_they_were() -> None:
    engine = engine_of({"fp16": {"enabled": True, "initial_scale_power": 8}, **ZERO1})
    handle = attach(engine, "topk:0.1")
    train(engine, 2)
    before, weights = residual_of(handle), flat(engine.module)
    engine.optimizer.loss_scale = 2.0**40
    train(engine, 3, first=2)
    assert engine.skipped_steps == 1
    assert torch.equal(before, residual_of(handle))
    assert torch.equal(weights, flat(engine.module))
    engine.optimizer.loss_scale = 2.0**8
    train(engine, 4, first=3)
    assert not torch.equal(before, residual_of(handle))
    assert handle.stats().skipped == 1


@scenario(2)
def compressed_training_learns() -> None:
    for configuration in ({}, {**ZERO1, "gradient_accumulation_steps": 2}):
        engine = engine_of(configuration)
        handle = attach(engine, "topk:0.05")
        train(engine, 4)
        # backward has the engine sum nothing
        with mock.patch.multiple(deepspeed.comm, all_reduce=None, reduce=None):
            for _ in range(engine.gradient_accumulation_steps() - 1):
                engine.backward(engine(batch(0)[0]).sum())
                engine.step()
            engine.backward(engine(batch(0)[0]).sum())
        engine.step()
        assert same_on_all_ranks(flat(engine.module))
        assert handle.verify() == []
        assert handle.stats().steps == 5
        assert handle.stats().ratio > 4
        # a step of PyTorch's own backward, and one taken back
        if engine.zero_optimization():
            train(engine, 7, first=5, torch_style=True)
            assert handle.stats().steps == 7
        before = residual_of(handle)
        with handle.paused():
            engine.backward(engine(batch(0)[0]).sum())
        with handle.accumulate():
            engine.backward(engine(batch(0)[0]).sum())
        assert torch.equal(before, residual_of(handle))
        assert same_on_all_ranks(flat(engine.module))


@scenario(2)
def hosts_without_a_shared_file_system_go_on_from_what_each_has_saved() -> None:
    # each rank is the first of a host
    with mock.patch.dict(os.environ, LOCAL_RANK="0"):
        configuration, place = {"checkpoint": {"use_node_local_storage": True}}, tempfile.mkdtemp()
        engine = engine_of(configuration)
        handle = attach(engine, "topk:0.05")
        train(engine, 3)
        engine.save_checkpoint(place)
        again = engine_of(configuration)
        resumed = attach(again, "topk:0.05")
        again.load_checkpoint(place, tag="global_step3")  # DeepSpeed notes the latest on rank 0's host alone
        assert residual_of(handle).any()
        assert torch.equal(residual_of(resumed), residual_of(handle))


@scenario(2)
def a_training_goes_on_from_its_checkpoint() -> None:
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    for configuration in ({}, ZERO1):
        place = str(Path(folder[0], str(len(configuration))))
        engine = engine_of(configuration)
        attach(engine, "topk:0.05")
        train(engine, 3)
        engine.save_checkpoint(place, client_state={"mine": 5})
        train(engine, 6, first=3)
        # another job
        again = engine_of(configuration)
        handle = attach(again, "topk:0.05")
        _, client_state = again.load_checkpoint(place)
        assert client_state["mine"] == 5
        assert residual_of(handle).any()
        train(again, 6, first=3)
        assert torch.equal(flat(again.module), flat(engine.module))
        # one that takes over the model alone
        warm = engine_of(configuration)
        handle = attach(warm, "topk:0.05")
        for options in ({"load_module_only": True}, {"load_optimizer_states": False}):
            _, client_state = warm.load_checkpoint(place, **options)
            assert client_state["mine"] == 5
            assert "gradwire" not in client_state
            assert not any(tensor.any() for key, tensor in handle.state_dict().items() if key.endswith("//residual"))
        # one of which some ranks see no file
        elsewhere = place if dist.get_rank() == 0 else place + "-elsewhere"
        refused(ValueError, "the ranks differ in checkpoint: ", partial(warm.load_checkpoint, elsewhere))
        # one that compresses nothing, and what it saves
        plain = engine_of(configuration)
        plain.load_checkpoint(place)
        plain.save_checkpoint(place + "-plain")
        says = warnings_of(lambda again=again, place=place: again.load_checkpoint(place + "-plain"))
        assert "has nothing of Gradwire; training goes on without its memories" in says


def warnings_of(call: Any) -> str:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("gradwire").addHandler(handler)
    call()
    logging.getLogger("gradwire").removeHandler(handler)
    return " ".join(said)


@scenario(2)
def a_detached_engine_sums_by_itself() -> None:
    for configuration in ({}, ZERO1):
        own, engine = trained(configuration), engine_of(configuration)
        handle = attach(engine, gw.FP32())
        train(engine, 2)
        refused(ValueError, "is averaged by gradwire.integrations.deepspeed already", lambda e=engine: attach(e))
        handle.detach()
        train(engine, 5, first=2)
        assert torch.equal(flat(engine.module), own)
        assert "allreduce_gradients" not in vars(engine)


@scenario(2)
def layers_that_are_frozen_and_thawed_train_as_with_deepspeed() -> None:
    for configuration, frozen in (({}, {0, 2}), ({}, set()), (ZERO1, set())):
        after = []
        for compressor in (None, "fp32"):
            model = network()
            freeze(model, frozen)
            engine = engine_of(configuration, model)
            if compressor:
                handle = attach(engine, compressor)
            for phase, layers in enumerate((frozen, {0}, set(), {4})):
                freeze(model, layers)
                train(engine, 2 * phase + 2, first=2 * phase)
            after.append(flat(model))
        assert same_on_all_ranks(after[1])
        torch.testing.assert_close(after[1], after[0], rtol=0, atol=0)
        assert handle.verify() == []


@scenario(2)
def what_is_thawed_and_not_stepped_by_zero_is_refused() -> None:
    says = "was thawed after deepspeed.initialize(), and ZeRO does not step it; make the engine anew"
    # on one rank alone, and on both
    for ranks in ([0], [0, 1]):
        freeze(model := network(), {0})
        engine = engine_of(ZERO1, model)
        attach(engine, "topk:0.1")
        train(engine, 2)
        freeze(model, set() if dist.get_rank() in ranks else {0})
        refused(ValueError if dist.get_rank() in ranks else RuntimeError, says, partial(train, engine, 3, first=2))
    again = engine_of(ZERO1, frozen := network())
    freeze(frozen, {0})
    attach(again, "topk:0.1")
    freeze(frozen, set())
    train(again, 2)
    assert same_on_all_ranks(flat(frozen))


@scenario(2)
def unused_parameters_are_named_or_averaged() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.parts = nn.ModuleList(nn.Linear(20, 5) for _ in range(2))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.parts[dist.get_rank()](inputs)

    for configuration in ({}, ZERO1):
        engine = engine_of(configuration, Parts())
        attach(engine, "fp32", find_unused_parameters=True)
        train(engine)
        assert same_on_all_ranks(flat(engine.module))
        engine = engine_of(configuration, Parts())
        attach(engine, "fp32")
        refused(RuntimeError, "got no gradient", lambda engine=engine: train(engine))


@scenario(2)
def engines_without_whole_gradients_are_refused() -> None:
    fp32 = {"data_types": {"grad_accum_dtype": "fp32"}}
    for configuration, says in [
        ({"zero_optimization": {"stage": 2}}, 'ZeRO 2 keeps no whole gradients; set "stage": 1'),
        ({"zero_optimization": {"stage": 3}}, 'ZeRO 3 keeps no whole gradients; set "stage": 1'),
        ({"zero_optimization": {"stage": 1, "overlap_comm": True}}, 'set "overlap_comm": false'),
        ({**BF16, **ZERO1, **fp32}, 'leave out "grad_accum_dtype"'),
        (FP16, 'the loss scale of "fp16" is known under ZeRO alone; set "stage": 1'),
        ({"gradient_allreduce_op": "sum"}, 'set "gradient_allreduce_op": "mean"'),
    ]:
        engine = engine_of(configuration)
        refused(ValueError, says, lambda engine=engine: attach(engine, "topk:0.1"))
    refused(ValueError, "is no DeepSpeedEngine; pass one", lambda: attach(network(), "topk:0.1"))
    refused(ValueError, "elastic= does not go with", lambda: attach(engine_of({}), "topk:0.1", elastic=True))
    deepspeed_engine.OF_ZERO += ("never_there",)
    says = f"DeepSpeed {deepspeed.__version__} has no 'never_there'"
    refused(ValueError, says, lambda: attach(engine_of(ZERO1), "topk:0.1"))


@scenario(1)
def parameters_of_another_type_than_the_configurations_are_refused() -> None:
    """Of them ZeRO sums gradients elsewhere than in `p.grad`."""
    engine = engine_of(ZERO1, network().bfloat16())
    refused(ValueError, 'set "bf16": {"enabled": true}', lambda: attach(engine, "topk:0.1"))


@scenario(1)
def one_rank_trains_and_keeps_state() -> None:
    engine = engine_of(ZERO1)
    handle = attach(engine, "topk:0.05")
    train(engine)
    engine.save_checkpoint(folder := tempfile.mkdtemp())
    engine.load_checkpoint(folder)
    assert "idle" in repr(handle)
