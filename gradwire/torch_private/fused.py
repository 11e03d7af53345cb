"""Fused optimizers, whose kernels leave parameters and state as they are where a flag on the GPU says so."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def skip_where(optimizer: Optimizer, flags: Sequence[Callable[[], Tensor]]) -> None:
    """Has the next step of a fused optimizer do nothing where one of the `flags` is 1 (), not 0. Others are left alone,
    and those that GradScaler has given such a flag."""
    fused: Any = optimizer
    if getattr(fused, "_step_supports_amp_scaling", False) and not hasattr(fused, "grad_scale"):
        fused.found_inf = reduce(torch.maximum, [flag() for flag in flags])


def skip_no_more(optimizer: Optimizer) -> None:
    """Ends `skip_where`."""
    fused: Any = optimizer
    if hasattr(fused, "found_inf") and not hasattr(fused, "grad_scale"):
        del fused.found_inf
