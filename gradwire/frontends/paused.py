"""Backward passes whose gradients are not sent: they only accumulate, or are thrown away."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor

from gradwire.runtime.runtime import Runtime

NO_SKIP = (
    "skip() takes back the last step, but the passes since then only accumulated and sent nothing; drop their "
    "gradients instead: by zero_grad(), or after FSDP's set_requires_gradient_sync(False) by model.reset_iter_state(), "
    "which torch 2.13 has"
)


class Accumulated:
    """A front end's note of backward passes that only accumulated."""

    slots: set[int]
    """The slots with gradients that are not reduced yet, as far as hooks have seen them."""
    since_step: bool
    """Such a pass has run since the last step was opened, whatever became of its gradients."""

    def __init__(self) -> None:
        self.slots, self.since_step = set(), False

    def note(self, slot: int) -> None:
        """Notes a gradient of such a pass."""
        self.slots.add(slot)
        self.since_step = True

    def no_skip(self, unseen: bool = False) -> str:
        """Why skip() is refused: passes since the last step only accumulated, perhaps `unseen` by hooks; "" where none
        did."""
        return NO_SKIP if self.since_step or unseen else ""

    def check_reduced(self, runtime: Runtime, parameters: Mapping[str, Tensor]) -> None:
        """Ends the job where a slot that is not reduced any more has a gradient, which would stay this rank's own."""
        for slot in self.slots:
            if not runtime.is_reduced(slot) and parameters[name := runtime.slots[slot].name].grad is not None:
                runtime.refuse(
                    f"parameter {name!r} was frozen between two micro-batches of a step; freeze it after "
                    "optimizer.step() and zero_grad()"
                )


@contextmanager
def paused(
    parameters: Iterable[Tensor], accumulated: Accumulated, accumulates: AbstractContextManager[None]
) -> Iterator[None]:
    """A context, inside `accumulates`, whose backward passes find no `p.grad` and leave none behind; earlier gradients
    come back. The same holds for what a front end has noted as `accumulated`."""
    before = [(parameter, parameter.grad) for parameter in parameters]
    slots, since_step = set(accumulated.slots), accumulated.since_step
    # set aside what earlier passes accumulated
    for parameter, _ in before:
        parameter.grad = None
    try:
        with accumulates:
            yield
    finally:
        # and put it back; gradients made inside are dropped
        accumulated.slots.clear()
        accumulated.slots.update(slots)
        accumulated.since_step = since_step
        for parameter, gradient in before:
            parameter.grad = gradient
