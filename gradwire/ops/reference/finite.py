"""Checks for NaN and infinity, without a host sync: the answer is a bool on a CPU, a tensor () on a GPU."""

import torch
from torch import Tensor

Finite = bool | Tensor


HUGE = 2.0**96
"""From here on numbers count as infinite; of smaller ones no sum of a gradient's elements overflows."""


def finite_in(x: Tensor) -> Finite:
    """Whether all of x is finite, and below HUGE."""
    if x.device.type != "cpu":
        return torch.linalg.vector_norm(x, torch.inf) < HUGE
    if not x.numel():
        return True
    least, most = torch.aminmax(x)  # NaN if any element is
    return float(least) > -HUGE and float(most) < HUGE


def reported(finite: Finite, nonfinite: Tensor | None) -> bool:
    """The answer for the host: a CPU's. On a GPU True, without waiting, and `nonfinite` (1,) becomes NaN if it is
    not."""
    if isinstance(finite, bool):
        return finite
    if nonfinite is not None:
        nonfinite.div_(finite)  # 0 / 0 is NaN
    return True


def both(a: Finite, b: Finite) -> Finite:
    """a and b."""
    return b if a is True else a if b is True else a & b
