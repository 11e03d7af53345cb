"""Compressors that decode votes, or updates such as Dion's, where means of gradients are needed; and what sends
momentum to an optimizer that has its own."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradwire.compressors import Compressor
from gradwire.frontends.values import is_sharded
from gradwire.memories import Memory
from gradwire.plans import Plan
from gradwire.torch_private.autograd import writes_to

_log = logging.getLogger("gradwire")
_VERSION = "gradwire_version"


class UpdateWarning:
    """Warns, once, where a backward pass adds its gradient to what SignSGD, Signum or Dion left in `.grad`: that is a
    vote or an update, and no gradient.

    After a step, the tensor remembers torch's count of writes to it. If there is one more when the next step opens,
    the backward pass alone has written. A new tensor remembers nothing, and zeroing counts as a write of its own."""

    def __init__(self) -> None:
        self._opened: Tensor | None = None
        self._warned = False

    def look(self, parameter: Tensor) -> None:
        """Looks at the parameter whose gradient opens a step."""
        self._opened, gradient = parameter, parameter.grad
        if self._warned or type(gradient) is not Tensor:
            return
        if vars(gradient).get(_VERSION) == writes_to(gradient) - 1:
            self._warned = True
            _log.warning(
                "a vote of SignSGD or Signum, or an update of Dion's, is no gradient, and a backward pass has added to "
                "it; run all backward passes of a step but the last under handle.accumulate(), then zero_grad()"
            )

    def mark(self, plan: Plan) -> None:
        """Marks the gradient of that parameter, when the step is over."""
        gradient = None if self._opened is None else self._opened.grad
        if type(gradient) is Tensor:
            means = all(group.compressor.decodes_means for group in plan.groups)
            vars(gradient)[_VERSION] = None if means else writes_to(gradient)


def check_means(plan: Plan, why: str) -> None:
    """Raises ValueError, which says `why`, for a plan whose compressors decode updates."""
    for group in plan.groups:
        if group.compressor.is_update:
            raise ValueError(f"{group.compressor} makes updates of gradients, and {why}; use e.g. PowerSGD(1 / 6)")


def check_moves(plan: Plan) -> None:
    """Raises ValueError for a plan whose compressors decode votes or updates, where it is for what parameters moved."""
    why = "local steps average movements of parameters"
    check_means(plan, why)
    for group in plan.groups:
        if group.compressor.sign_vote:
            raise ValueError(f"{group.compressor} makes votes of gradients, and {why}; use e.g. EFSignSGD()")


def sends_momentum(compressor: Compressor, memory: Memory | None) -> bool:
    """Whether what is decoded is made of momentum, or of what a memory of the user's keeps in its place."""
    own = compressor.is_update or (compressor.sign_vote and bool(compressor.flat_state))
    return own or (memory is not None and memory.keeps_momentum)


def warn_of_momentum(plan: Plan, parameters: Mapping[str, Tensor], optimizer: Optimizer) -> None:
    """Warns where matrices, which are sent as momentum, are given to an optimizer that keeps its own."""
    sending = [group for group in plan.groups if sends_momentum(group.compressor, group.memory)]
    kept = {id(p) for group in optimizer.param_groups if _keeps_momentum(group) for p in group["params"]}
    for group in sending:
        if any(parameters[name].dim() > 1 and id(parameters[name]) in kept for name in group.slots):
            _log.warning(
                "%s with %s sends momentum, and this %s's momentum would count twice; give it an optimizer without, "
                "such as SGD(..., momentum=0)", group.compressor, group.memory, type(optimizer).__name__,
            )  # fmt: skip
            return


def check_unsharded(plan: Plan, parameters: Iterable[Tensor]) -> None:
    """Raises ValueError for a plan that makes updates of whole matrices, of which a rank has shards."""
    if any(map(is_sharded, parameters)):
        check_means(plan, "FSDP2's ranks have shards of a matrix each")


def _keeps_momentum(options: Mapping[str, Any]) -> bool:
    """Whether one of torch's optimizers keeps momentum of parameters for which it has these options."""
    # other optimizers may call something else betas
    betas = options.get("betas")
    return bool(options.get("momentum") or (isinstance(betas, Sequence) and betas and betas[0]))
