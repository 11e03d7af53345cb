"""Gradwire under Megatron-core: `attach` to a model in its DistributedDataParallel."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.frontends.hooks.gradient_access import FullGradients
from gradwire.frontends.hooks.gradient_hooks import GradientHooks
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.parameters import device_of, parameters_of, slots_of
from gradwire.frontends.owners import check_free
from gradwire.frontends.paused import paused
from gradwire.integrations.framework import check_unused
from gradwire.integrations.megatron_ddp import BucketGroup, MegatronModel
from gradwire.plans import Plan
from gradwire.runtime.runtime import Runtime
from gradwire.transports import ProcessGroup

KIND = "gradwire.integrations.megatron"
UNUSED = "elastic", "find_unused_parameters", "scaler", "weight"


def attach(ddp: Any, compressor: Compressor | Plan | str | None = None, **options: Any) -> Handle:
    """Compresses the gradients of a model in `megatron.core.distributed.DistributedDataParallel`, and averages them in
    its place, with or without the distributed optimizer, which then takes its part of the means; train as before. The
    `options` are those of `gradwire.attach`, but `elastic`, `find_unused_parameters`, `scaler` and `weight`: a
    parameter without a gradient has one of zero, and Megatron scales losses itself.

    Call it on all ranks, before training. Save `handle.state_dict(all_ranks=True)` beside the model, and give it to
    `handle.load_state_dict` when training goes on. Raises what `gradwire.attach` raises, and ValueError for a model
    that is not whole on every rank."""
    # options, then the model: before anything is made
    check_unused(options, UNUSED, "Megatron's DistributedDataParallel")
    choices = StepChoices.of(compressor, **options)
    choices.check()
    own = MegatronModel(ddp)
    parameters, others = parameters_of(own.module, own.reduces)
    check_free(parameters)
    # open a process group; with one rank nothing is sent
    mesh = choices.mesh(partial(ProcessGroup.own, own.process_group), device_of(parameters))
    front_end = MegatronGradients(own, parameters)
    if mesh.ranks == 1:
        choices.close_own(mesh)
        choices.try_out(parameters)
        return Handle(None, front_end)
    slots = slots_of({name: _main_grad(parameter) for name, parameter in parameters.items()})
    runtime = choices.runtime("Megatron", parameters, slots, mesh, others=others, scale=own.scale)
    front_end.hook_in(runtime)
    front_end.claim(parameters.values(), KIND)
    return Handle(runtime, front_end)


class MegatronGradients(GradientHooks):
    """A front end that submits the gradients of a group of buckets where Megatron would begin their sum: in the
    backward pass of the last micro-batch, or behind it. Where Megatron would wait for the sums, the step ends."""

    def __init__(self, model: MegatronModel, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(parameters, model.module, _MainGradients(model), find_unused=False)
        self._own, self._addresses = model, list[int]()

    def hook_in(self, runtime: Runtime) -> None:
        self.hook_forward(runtime)
        slots: dict[Tensor, int] = {self._parameters[slot.name]: index for index, slot in enumerate(runtime.slots)}
        self._own.reduce_by(self.gradients_cleared, partial(self._group_ready, runtime, slots), self._step_ends)

    def unhook(self) -> None:
        super().unhook()
        self._own.restore()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        with super().accumulate(), self._own.no_sync():
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        with paused((), self._accumulated, self.accumulate()), self._own.set_aside():
            yield

    def _group_ready(self, runtime: Runtime, slots: dict[Tensor, int], group: BucketGroup) -> None:
        if not self._synchronising:
            return
        if not self._under_way:
            self._open_step(runtime)
        # when the step ends, groups that began in the backward pass come again
        own = {slots[parameter]: parameter for parameter in group.parameters if parameter in slots}
        if own and not all(runtime.arrived[slot] for slot in own):
            group.check()
            for slot, parameter in own.items():
                self._gradient_ready(slot, parameter)

    def _open_step(self, runtime: Runtime) -> None:
        if why := self._own.left_out():
            runtime.refuse(why)
        if (now := self._own.addresses()) != self._addresses:
            self._addresses = now
            runtime.fix_addresses(True)
        self._own.read_scale()
        super()._open_step(runtime)

    def _step_ends(self) -> None:
        if self._synchronising:
            self._backward_done()
            self._own.weigh()


class _MainGradients(FullGradients):
    """Access to the gradients in Megatron's buckets, which are zero where a parameter has none."""

    def __init__(self, model: MegatronModel) -> None:
        super().__init__()
        self._own = model

    def only_accumulates(self) -> bool:
        return self._own.accumulates()

    def gradient(self, parameter: Tensor) -> Tensor | None:
        return _main_grad(parameter)


def _main_grad(parameter: Any) -> Tensor:
    return parameter.main_grad
