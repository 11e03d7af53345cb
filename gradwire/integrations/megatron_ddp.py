"""Megatron-core's DistributedDataParallel: all attributes of it that Gradwire uses, none of which are promised."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.integrations.framework import Replacements, check_fits, check_has
from gradwire.ops.host import number_in
from gradwire.ops.vectors import Scalar
from gradwire.options import one_line
from gradwire.torch_private.compiled import named_parameters
from gradwire.torch_private.process_groups import world_size

# by name, for it is not among what development needs
megatron: Any = import_module("megatron.core")
distributed: Any = import_module("megatron.core.distributed")
TRIED = "0.16.1"
_check_has = partial(check_has, framework=f"megatron-core {megatron.__version__}", tried=TRIED)
OF_DDP = (
    "bucket_groups", "config", "ddp_config", "dp_group", "expert_parallel_bucket_groups", "finish_grad_sync", "no_sync",
    "param_to_bucket_group", "zero_grad_buffer",
)  # fmt: skip
OF_GROUP = ("buckets", "check_grads", "ddp_config", "is_last_microbatch", "start_grad_sync")
OF_BUCKET = ("grad_data", "gradient_scaling_factor", "params_list")


class BucketGroup:
    """A group of buckets, which Megatron sums together."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.parameters: list[Tensor] = [each for bucket in group.buckets for each in bucket.params_list]

    def check(self) -> None:
        """Looks for gradients that are NaN or unexpectedly large, as Megatron does where its options say so. Raises
        what Megatron raises."""
        nan, large = self._group.ddp_config.check_for_nan_in_grad, self._group.ddp_config.check_for_large_grads
        if nan or large:
            self._group.check_grads(check_for_nan_or_inf=nan, check_for_large=large)


class MegatronModel:
    """A model in Megatron's DistributedDataParallel, each rank of which holds all of it. Its gradients, summed over the
    micro-batches of a step, are `parameter.main_grad`, which lie in buckets.

    Raises ValueError, naming what to do, for any other, and for a Megatron that lacks what is used here."""

    def __init__(self, ddp: Any) -> None:
        if not isinstance(ddp, distributed.DistributedDataParallel):
            raise ValueError(
                f"attach() takes Megatron's DistributedDataParallel, not {one_line(ddp)}; pass DistributedDataParallel("
                "config, ddp_config, model), of a list of them its only one"
            )
        _check_has(ddp, OF_DDP)
        check_fits(_refusals(ddp))
        for group in ddp.bucket_groups:
            _check_has(group, OF_GROUP)
            _check_has(group.buckets[0], OF_BUCKET)
        self._ddp = ddp
        if why := self.left_out():
            raise ValueError(why)
        # at one address, which recorded turns read
        self._one = torch.ones((), dtype=torch.float32, device=ddp.bucket_groups[0].buckets[0].grad_data.device)
        self._scale = self._one.clone()
        self._replacements = Replacements()

    @property
    def module(self) -> nn.Module:
        """The model itself."""
        return self._ddp.module

    @property
    def process_group(self) -> Any:
        """The group over which gradients are summed."""
        return self._ddp.dp_group

    def reduces(self, parameter: Tensor) -> bool:
        """Whether the parameter needed a gradient when its DistributedDataParallel was made."""
        return parameter in self._ddp.param_to_bucket_group

    def left_out(self) -> str:
        """An error message about a parameter that needs a gradient now, and needed none then; empty if none does."""
        for name, parameter in named_parameters(self.module):
            if parameter.requires_grad and not self.reduces(parameter):
                return (
                    f"parameter {name!r} was thawed after DistributedDataParallel was made, which keeps no gradient of "
                    "it; make that and the optimizer anew"
                )
        return ""

    def no_sync(self) -> AbstractContextManager[None]:
        """A context in which backward passes only accumulate."""
        return self._ddp.no_sync()

    def accumulates(self) -> bool:
        """Whether backward passes only accumulate now: by `no_sync`, or Megatron's own call of it."""
        return not any(group.is_last_microbatch for group in self._ddp.bucket_groups)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """A context in which gradients begin at zero; afterwards they are what they were before."""
        before = [bucket.grad_data.clone() for bucket in self._buckets]
        for bucket in self._buckets:
            bucket.grad_data.zero_()
        try:
            yield
        finally:
            for bucket, gradients in zip(self._buckets, before, strict=True):
                bucket.grad_data.copy_(gradients)

    def addresses(self) -> list[int]:
        """Where gradients lie: elsewhere once `restore_grad_buffers` has taken memory for them anew."""
        return [bucket.grad_data.data_ptr() for bucket in self._buckets]

    def read_scale(self) -> None:
        """Reads the factor that schedules multiply losses by, for the step that begins."""
        if scaled := self._ddp.config.grad_scale_func:
            self._scale.copy_(scaled(self._one).reshape(()))

    def scale(self) -> Scalar | None:
        """That factor; None where losses are not scaled."""
        return number_in(self._scale) if self._ddp.config.grad_scale_func else None

    def reduce_by(
        self, clear: Callable[[], None], ready: Callable[[BucketGroup], None], finish: Callable[[], None]
    ) -> None:
        """Has `clear` called before gradients become zero, `ready` with each group of buckets in place of the start of
        its sum and once more at the end of the step, and then `finish`, in place of the wait for all sums."""
        # before gradients become zero
        rest = self._ddp.zero_grad_buffer

        def zero_grad_buffer() -> None:
            clear()
            rest()

        # in place of the start of a sum
        for group in self._ddp.bucket_groups:
            self._replacements.replace(group, "start_grad_sync", partial(_start, ready, BucketGroup(group)))

        # in place of the wait for all sums
        def finish_grad_sync(force_all_reduce: bool | None = False) -> None:
            for group in self._ddp.bucket_groups:
                group.start_grad_sync()
            finish()

        self._replacements.replace(self._ddp, "zero_grad_buffer", zero_grad_buffer)
        self._replacements.replace(self._ddp, "finish_grad_sync", finish_grad_sync)

    def weigh(self) -> None:
        """Makes the means in `main_grad` what Megatron makes: sums, where the loss is one per token."""
        ranks = 1 if self._ddp.ddp_config.average_in_collective else self._ddp.dp_group.size()
        for bucket in self._buckets:
            if (factor := bucket.gradient_scaling_factor * ranks) != 1:
                bucket.grad_data.mul_(factor)

    def restore(self) -> None:
        """Undoes what was replaced: Megatron sums by itself again."""
        self._replacements.undo()

    @property
    def _buckets(self) -> list[Any]:
        return [bucket for group in self._ddp.bucket_groups for bucket in group.buckets]


def _start(ready: Callable[[BucketGroup], None], group: BucketGroup, force_all_reduce: bool | None = False) -> None:
    ready(group)


def _refusals(ddp: Any) -> Mapping[str, bool]:
    """Error messages for models whose gradients Gradwire cannot reduce, and whether each applies to this one."""
    own = ddp.ddp_config
    whole = ddp.dp_group.size() == world_size() and not ddp.expert_parallel_bucket_groups
    return {
        "every rank must hold the whole model: no tensor, pipeline, context or expert parallelism": not whole,
        "Gradwire does not gather parameters; set overlap_param_gather=False": own.overlap_param_gather,
        "sums go over all ranks at once; set num_distributed_optimizer_instances=1": (
            own.num_distributed_optimizer_instances > 1
        ),
        "gradients share memory with parameters; set reuse_grad_buf_for_mxfp8_param_ag=False": (
            own.reuse_grad_buf_for_mxfp8_param_ag
        ),
    }
