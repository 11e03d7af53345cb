"""The factor by which a GradScaler multiplies losses."""

from collections.abc import Callable

import torch

from gradwire.ops.host import number_in
from gradwire.ops.vectors import Scalar
from gradwire.torch_private.autograd import scale_of


def scale_from(scaler: torch.amp.GradScaler | None) -> Callable[[], Scalar | None]:
    """A function that returns the factor of `scaler`: a number on a CPU, a tensor () elsewhere. It raises ValueError
    for a number that has become 0."""

    def scale() -> Scalar | None:
        now = None if scaler is None else scale_of(scaler)
        factor = None if now is None else number_in(now)
        if isinstance(factor, float) and not factor:
            raise ValueError("GradScaler's scale has become 0: all steps overflow; resume with a lower learning rate")
        return factor

    return scale
