"""Trainings under Megatron-core on CPUs: scenarios as in `scenarios`."""

import tempfile
import warnings
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

import gradwire as gw
from tests.processes.scenarios import batch, flat, freeze, network, refused, same_on_all_ranks, scenario
from tests.support.states import residual_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about packages for GPUs
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing import load, save
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
    from megatron.core.enums import ModelType
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import MegatronModule, TransformerConfig

    from gradwire.integrations import megatron_ddp
    from gradwire.integrations.megatron import attach

SHARDED = {"use_distributed_optimizer": True}
OVERLAPPED = {"overlap_grad_reduce": True, "bucket_size": 1500}
PER_TOKEN = {"calculate_per_token_loss": True}
CONFIGURATIONS = [
    {}, SHARDED, OVERLAPPED, {**SHARDED, **OVERLAPPED}, {"check_for_nan_in_grad": True}, PER_TOKEN,
    {**OVERLAPPED, **PER_TOKEN},
]  # fmt: skip


class OnCPU(TorchFunctionMode):
    """What Megatron makes on "cuda" is made on the CPU, whose tensors it takes for a GPU's."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function is Tensor.type and len(arguments) == 1:
            return function(*arguments).replace("torch.", "torch.cuda.")
        return function(*arguments, **options | ({"device": "cpu"} if options.get("device") == "cuda" else {}))


class Network(MegatronModule):
    """`network()`, as schedules take it."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.layers = network()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def set_input_tensor(self, tensor: Tensor | None) -> None:
        pass


@cache
def meet(parts: int = 1) -> None:
    torch.cuda.current_device = lambda: "cpu"  # where Megatron makes its buffers; in this process alone
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=parts)


class Training:
    """A model, its optimizer, and steps by Megatron's schedule, of some micro-batches each."""

    def __init__(
        self, calculate_per_token_loss: bool = False, bf16: bool = False, scale: float | None = None, parts: int = 1,
        frozen: Collection[int] = (), **of_ddp: Any,
    ) -> None:  # fmt: skip
        meet(parts)
        config = TransformerConfig(
            num_layers=1, hidden_size=8, num_attention_heads=1, calculate_per_token_loss=calculate_per_token_loss
        )
        model = Network(config).to(torch.bfloat16 if bf16 else torch.float32)
        freeze(model.layers, set(frozen))
        self.ddp = DistributedDataParallel(config, DistributedDataParallelConfig(**of_ddp), model)
        sharded = of_ddp.get("use_distributed_optimizer", False)
        own = OptimizerConfig(lr=0.01, clip_grad=0.5, bf16=bf16, use_distributed_optimizer=sharded)
        with OnCPU():
            self.optimizer = get_megatron_optimizer(own, [self.ddp])
        config.no_sync_func, config.finalize_model_grads_func = self.ddp.no_sync, finalize_model_grads
        config.grad_scale_func = None if scale is None else lambda loss: loss * self.scale
        self.scale, self.number = scale, 0

    def step(self) -> None:
        self.clear()
        self.backward()
        if self.scale:
            self.ddp.scale_gradients(1 / self.scale)
        with OnCPU():
            self.optimizer.step()

    def clear(self) -> None:
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()

    def backward(self, micro_batches: int = 3) -> None:
        batches = map(batch, range(self.number, self.number + micro_batches))
        self.number += micro_batches
        with OnCPU():
            get_forward_backward_func()(
                forward_step_func=forward_step, data_iterator=batches, model=[self.ddp],
                num_microbatches=micro_batches, seq_length=1, micro_batch_size=8,
            )  # fmt: skip

    def steps(self, number: int) -> Tensor:
        for _ in range(number):
            self.step()
        assert same_on_all_ranks(flat(self.ddp))
        return flat(self.ddp)


def forward_step(batches: Iterator[tuple[Tensor, Tensor]], model: Any) -> tuple[Tensor, Any]:
    inputs, targets = next(batches)

    def loss(output: Tensor) -> tuple[Any, ...]:
        if model.config.calculate_per_token_loss:
            total = cross_entropy(output, targets, reduction="sum")
            return total, torch.tensor(len(targets), dtype=torch.int), {"loss": total.item()}
        mean = cross_entropy(output, targets)
        return mean, {"loss": mean.item()}

    return model(inputs.to(next(model.parameters()).dtype)).float(), loss


@scenario(2, 3)
def dense_means_train_as_megatron_does() -> None:
    for configuration in CONFIGURATIONS:
        ours, theirs = dense(**configuration)
        # with two ranks the order of a sum does not matter
        within = {"rtol": 0, "atol": 0} if dist.get_world_size() == 2 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(ours, theirs, **within, msg=lambda text, at=configuration: f"{at}: {text}")


@scenario(2)
def mixed_precision_trains_as_megatron_does() -> None:
    for configuration in ({}, {"grad_reduce_in_fp32": True}, {"grad_reduce_in_fp32": True, **SHARDED}):
        assert torch.equal(*dense(bf16=True, **configuration)), configuration


def dense(**configuration: Any) -> tuple[Tensor, Tensor]:
    """The parameters after a training by our dense means, and after one by Megatron's."""
    ours, theirs = Training(**configuration), Training(**configuration)
    handle = attach(ours.ddp, gw.FP32())
    after = ours.steps(4), theirs.steps(4)
    assert handle.stats().steps == 4
    return after


@scenario(2)
def compressed_training_learns() -> None:
    for configuration in ({}, {**SHARDED, **OVERLAPPED}):
        training = Training(**configuration)
        handle = attach(training.ddp, "topk:0.05")
        with mock.patch.object(_ParamAndGradBucketGroup, "start_grad_sync", None):  # Megatron's own sum
            training.steps(4)
        assert handle.verify() == []
        assert handle.stats().steps == 4
        assert handle.stats().ratio > 4
        assert residual_of(handle).any()


@scenario(2)
def gradients_lie_where_they_did_until_megatron_gives_their_memory_back() -> None:
    for configuration in ({}, OVERLAPPED):
        theirs = Training(**configuration).steps(6)
        training = Training(**configuration)
        handle = attach(training.ddp, gw.FP32())
        training.steps(4)
        before = addresses(training)
        assert fixed(handle) <= before
        # as offload_grad_buffers and restore_grad_buffers do; others take the memory between them
        for buffer in training.ddp.buffers:
            buffer.offload_to_cpu(move_params=False)
        others = [torch.zeros(buffer.grad_data_size) for buffer in training.ddp.buffers for _ in range(8)]
        for buffer in training.ddp.buffers:
            buffer.reload_from_cpu(move_params=False)
        assert addresses(training) != before, len(others)
        assert torch.equal(training.steps(2), theirs)
        assert fixed(handle) <= addresses(training)


def addresses(training: Training) -> set[int]:
    return {parameter.main_grad.data_ptr() for parameter in training.ddp.parameters()}


def fixed(handle: gw.Handle) -> set[int]:
    """Where the gradients of each group lie in every step; raises AttributeError where they do not."""
    runtime: Any = handle._runtime
    return {tensor.data_ptr() for group in runtime._steps.store.groups for tensor in group.fixed.tensors}


@scenario(2)
def a_step_that_is_paused_accumulated_or_skipped_leaves_memories_as_they_were() -> None:
    for configuration in ({}, OVERLAPPED):
        training = Training(**configuration)
        handle = attach(training.ddp, "topk:0.05")
        training.steps(3)
        before, gradients = residual_of(handle), main_gradients(training)
        with handle.paused():
            training.backward()
        assert torch.equal(gradients, main_gradients(training))
        with handle.accumulate():
            training.backward()
        assert not torch.equal(gradients, main_gradients(training))
        assert torch.equal(before, residual_of(handle))
        training.clear()
        training.backward()
        assert not torch.equal(before, residual_of(handle))
        handle.skip()
        assert torch.equal(before, residual_of(handle))
        training.steps(2)


@scenario(2)
def micro_batches_that_were_not_sent_are_not_skipped_by_taking_back_the_step_before() -> None:
    for configuration in ({}, OVERLAPPED):
        training = Training(**configuration)
        handle = attach(training.ddp, "topk:0.05")
        training.steps(3)
        before = residual_of(handle)
        training.clear()
        with handle.accumulate():
            training.backward()
        refused(ValueError, "only accumulated and sent nothing", handle.skip)
        assert torch.equal(before, residual_of(handle))
        # one that is thrown away is none of them, nor is one of a step whose last pass was reduced
        training.steps(1)
        with handle.paused():
            training.backward()
        handle.skip()
        assert torch.equal(before, residual_of(handle))


def main_gradients(training: Training) -> Tensor:
    return torch.cat([parameter.main_grad.flatten() for parameter in training.ddp.parameters()])


@scenario(2)
def memories_know_nothing_of_loss_scales() -> None:
    kept = []
    for scale in (2.0**8, 2.0**13):
        training = Training(scale=scale)
        handle = attach(training.ddp, "topk:0.1")
        training.steps(3)
        training.scale *= 4
        kept.append((training.steps(2), residual_of(handle)))
    assert kept[0][1].any()
    torch.testing.assert_close(kept[0], kept[1], rtol=0, atol=0)


@scenario(2)
def a_step_that_is_not_finite_leaves_memories_as_they_were() -> None:
    training = Training(scale=1.0)
    handle = attach(training.ddp, "topk:0.1")
    training.steps(2)
    before = residual_of(handle)
    training.scale = float("inf") if dist.get_rank() == 0 else 1.0
    training.clear()
    training.backward()
    assert main_gradients(training).isnan().any()
    assert torch.equal(before, residual_of(handle))
    assert handle.stats().skipped == 1


@scenario(2)
def a_training_goes_on_from_megatrons_checkpoint() -> None:
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    training = Training()
    handle = attach(training.ddp, "topk:0.05")
    training.steps(3)
    own = {"model": training.ddp.state_dict(), "optimizer": training.optimizer.state_dict()}
    save({"gradwire": handle.state_dict(all_ranks=True), **own}, folder[0])
    # another job
    again = Training()
    other = attach(again.ddp, "topk:0.05")
    state = load({}, folder[0])
    again.ddp.load_state_dict(state["model"])
    again.optimizer.load_state_dict(state["optimizer"])
    other.load_state_dict(state["gradwire"])
    again.number = training.number
    assert residual_of(other).any()
    assert torch.equal(residual_of(other), residual_of(handle))
    assert torch.equal(again.steps(3), training.steps(3))


@scenario(2)
def a_detached_model_sums_by_itself() -> None:
    for configuration in ({}, OVERLAPPED):
        own, training = Training(**configuration).steps(5), Training(**configuration)
        handle = attach(training.ddp, gw.FP32())
        training.steps(2)
        refused(ValueError, "is averaged by gradwire.integrations.megatron", lambda t=training: attach(t.ddp))
        handle.detach()
        assert torch.equal(training.steps(3), own)
        assert "finish_grad_sync" not in vars(training.ddp)


@scenario(2)
def a_backward_that_failed_under_megatron_leaves_no_trace() -> None:
    for ranks in ({0, 1}, {1}):
        # in the first step Megatron itself goes on from no failure; where gradients lie is known from the second one on
        for steps in (1, 2):
            training = Training(**OVERLAPPED)
            handle = attach(training.ddp, "topk:0.05")
            training.steps(steps)
            before = residual_of(handle)
            fail_once(training, ranks)
            assert torch.equal(before, residual_of(handle))
            training.steps(2)
            assert handle.stats().skipped == 1


def fail_once(training: Training, ranks: Collection[int]) -> None:
    """A backward pass that fails on some ranks; no rank steps."""

    def fail(gradient: Tensor) -> None:
        if dist.get_rank() in ranks:
            raise RuntimeError("on purpose")

    # the first layer's gradient is the last one, when other groups are under way
    hook = training.ddp.module.layers[0].weight.register_hook(fail)
    training.clear()
    if dist.get_rank() in ranks:
        refused(RuntimeError, "on purpose", lambda: training.backward(1))
        training.clear()
    else:
        training.backward(1)
    hook.remove()


@scenario(2)
def gradients_are_checked_before_they_are_means_and_not_again() -> None:
    training = Training(check_for_nan_in_grad=True, **OVERLAPPED)
    attach(training.ddp, "topk:0.05")
    training.steps(2)
    with mock.patch.object(_ParamAndGradBucketGroup, "check_grads") as check:
        training.step()
    assert check.call_count == len(training.ddp.bucket_groups) > 1


@scenario(2)
def means_that_megatron_would_make_in_the_collective_are_means() -> None:
    own, training = Training().steps(3), Training(average_in_collective=True)
    attach(training.ddp, "fp32")
    assert torch.equal(training.steps(3), own)


@scenario(2)
def a_parameter_without_a_gradient_has_one_of_zero() -> None:
    after = []
    for compressor in (None, "fp32"):
        training = Training()
        training.ddp.module.layers[4].requires_grad_(False)
        if compressor:
            attach(training.ddp, compressor)
        after.append(training.steps(3))
    assert torch.equal(*after)


@scenario(2)
def what_is_thawed_after_megatrons_buckets_were_made_is_refused() -> None:
    says = "parameter 'layers.2.weight' was thawed after DistributedDataParallel was made, which keeps"
    for configuration in ({}, OVERLAPPED):
        training = Training(frozen={2}, **configuration)
        attach(training.ddp, "topk:0.1")
        training.steps(2)
        freeze(training.ddp.module.layers, set())
        refused(RuntimeError, says, training.step)
    training = Training(frozen={2})
    freeze(training.ddp.module.layers, set())
    refused(ValueError, says, lambda: attach(training.ddp, "topk:0.1"))


@scenario(2)
def models_that_are_not_whole_are_refused() -> None:
    training = Training()
    for of_ddp, says in [
        ({**SHARDED, "overlap_param_gather": True}, "set overlap_param_gather=False"),
        ({"num_distributed_optimizer_instances": 2}, "set num_distributed_optimizer_instances=1"),
        ({"reuse_grad_buf_for_mxfp8_param_ag": True}, "set reuse_grad_buf_for_mxfp8_param_ag=False"),
    ]:
        with mock.patch.multiple(training.ddp.ddp_config, **of_ddp):
            refused(ValueError, says, lambda: attach(training.ddp, "topk:0.1"))
    with mock.patch.object(training.ddp, "expert_parallel_bucket_groups", training.ddp.bucket_groups):
        refused(ValueError, "every rank must hold the whole model", lambda: attach(training.ddp, "topk:0.1"))
    refused(ValueError, "attach() takes Megatron's DistributedDataParallel, not", lambda: attach([training.ddp]))
    refused(ValueError, "weight= does not go with", lambda: attach(training.ddp, "topk:0.1", weight=2.0))
    with mock.patch.object(megatron_ddp, "OF_BUCKET", ("never_there",)):
        refused(ValueError, "has no 'never_there'", lambda: attach(training.ddp, "topk:0.1"))


@scenario(2)
def models_in_parts_are_refused() -> None:
    training = Training(parts=2)
    refused(ValueError, "every rank must hold the whole model", lambda: attach(training.ddp, "topk:0.1"))


@scenario(1)
def one_rank_trains_as_ever() -> None:
    training = Training()
    handle = attach(training.ddp, "topk:0.05")
    training.steps(2)
    assert "idle" in repr(handle)
