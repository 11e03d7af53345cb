"""Gradwire under DeepSpeed, without ZeRO or with its stage 1: `attach` to the engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from torch import Tensor

from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.frontends.hooks.gradient_access import FullGradients
from gradwire.frontends.hooks.gradient_hooks import GradientHooks
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.parameters import device_of, slots_of
from gradwire.frontends.owners import check_free
from gradwire.frontends.trained import TrainedParameters
from gradwire.integrations.deepspeed_engine import TrainingEngine
from gradwire.integrations.first_rank import load_or_warn
from gradwire.integrations.framework import check_unused
from gradwire.plans import Plan
from gradwire.runtime.runtime import Runtime
from gradwire.transports import ProcessGroup

KEY, KIND = "gradwire", "gradwire.integrations.deepspeed"


def attach(engine: Any, compressor: Compressor | Plan | str | None = None, **options: Any) -> Handle:
    """Compresses the gradients of the engine that `deepspeed.initialize` returned, and averages them in place of
    DeepSpeed; train as before. Of ZeRO's stage 1 every rank then steps its partition by these means. Parameters may
    be frozen and thawed between steps, on all ranks together. The engine's `save_checkpoint` and `load_checkpoint`
    include Gradwire's state, unless only the model is loaded. The `options` are those of `gradwire.attach`, but
    `elastic` and `scaler`: the engine scales losses.

    Call it on all ranks, before training. Raises what `gradwire.attach` raises, and ValueError for an engine whose
    gradients are not whole on every rank, as under ZeRO's stages 2 and 3."""
    # options, then the engine: before anything is made
    check_unused(options, ("elastic", "scaler"), "DeepSpeed's engine")
    choices = StepChoices.of(compressor, **options)
    choices.check()
    own = TrainingEngine(engine)
    trained = TrainedParameters(own.module, own.check)
    parameters = trained.parameters()
    check_free(trained.reducible)
    # open a process group; with one rank nothing is sent
    mesh = choices.mesh(partial(ProcessGroup.own, None), device_of(parameters))
    front_end = EngineGradients(own, trained, choices.find_unused_parameters)
    if mesh.ranks == 1:
        choices.close_own(mesh)
        choices.try_out(trained.reducible, trained=parameters.keys())
        runtime = None
    else:
        runtime = choices.runtime(
            "DeepSpeed", trained.reducible, slots_of(trained.reducible), mesh, trained=parameters.keys(),
            others=trained.others, scale=own.scale,
        )  # fmt: skip
        front_end.hook_in(runtime)
        front_end.claim(chain(trained.reducible.values(), own.stepped()), KIND)
    handle = Handle(runtime, front_end)
    own.save_with(KEY, partial(handle.state_dict, all_ranks=True), front_end.agree_on, partial(load_or_warn, handle))
    return handle


class EngineGradients(GradientHooks):
    """Hooks that submit the gradients of an engine's model as backward makes them. Where the engine would sum them,
    `reduce` ends the step: behind the backward pass, or in `engine.step()`, where the engine leaves it to that."""

    def __init__(self, engine: TrainingEngine, trained: TrainedParameters, find_unused: bool) -> None:
        super().__init__(trained.reducible, engine.module, _Gradients(engine), find_unused, trained=trained)
        self._engine = engine

    def hook_in(self, runtime: Runtime) -> None:
        super().hook_in(runtime)
        self._engine.reduce_by(partial(self.reduce, runtime))

    def unhook(self) -> None:
        super().unhook()
        self._engine.restore()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        with super().accumulate(), self._engine.no_sync():
            yield

    def agree_on(self, found: bool) -> None:
        """Raises ValueError, on all ranks, where some have found a checkpoint and others have not."""
        if self._runtime:
            with self._runtime.between_steps("load_checkpoint()", checkpoint="found" if found else "not found"):
                pass

    def reduce(self, runtime: Runtime) -> None:
        """Waits for the means, in the place of the gradients."""
        # no gradient has opened the step, where all backward passes only accumulated
        if not self._under_way:
            self._open_step(runtime)
        self._backward_done()

    def _backward_begins(self, runtime: Runtime) -> None:
        # the engine says when the pass is over
        self._open_step(runtime)


class _Gradients(FullGradients):
    """Access to an engine's gradients."""

    def __init__(self, engine: TrainingEngine) -> None:
        super().__init__()
        self._engine = engine

    def accumulates(self, parameter: Tensor) -> bool:
        return self._engine.accumulates
