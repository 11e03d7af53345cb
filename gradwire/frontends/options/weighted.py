"""Weights of ranks in a step's mean, as users give them."""

from collections.abc import Callable

from torch import Tensor

from gradwire.plans import Plan
from gradwire.torch_private.autograd import in_backward

Weight = float | Tensor | Callable[[], float | Tensor]
"""A number, a tensor () that is read at every step, or a function that returns one."""


def weight_function(weight: Weight | None) -> Callable[[], object] | None:
    """A function that returns the weight of a step; None where ranks have none."""
    return weight if weight is None or callable(weight) else lambda: weight


def asked_in_backward(weight: Weight | None) -> Callable[[], object] | None:
    """The same; 0 outside of a backward pass, where a rank that has joined the others takes part without a batch."""
    ask = weight_function(weight)
    return ask and (lambda: ask() if in_backward() else 0.0)


def check_weighted(plan: Plan, weight: Weight | None) -> None:
    """Raises ValueError where ranks have weights, and parts of a plan make means without."""
    for group in plan.groups if weight is not None else ():
        if group.compressor.sign_vote:
            raise ValueError(f"in {group.compressor} every rank has one vote; use EFSignSGD(), or leave weight out")
        if getattr(group.communicator, "over_senders", False):
            raise ValueError(f"{group.communicator} counts senders; use AllGather(), or leave weight out")
