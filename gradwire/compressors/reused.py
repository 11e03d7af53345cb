"""ReusedThreshold: an exact threshold now and then, and its reuse in between."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.context import GroupContext
from gradwire.compressors.estimated import Thresholded
from gradwire.ops.backend import backend_for
from gradwire.ops.threshold import passing

SHORTEST = 5
"""The least τ that adapting leads to."""


@dataclass(frozen=True)
class ReusedThreshold(Thresholded, recordable=True):
    """Exact top-k every τ steps, whose threshold selects in the steps between (ADTopk, HPDC 2024,
    https://doi.org/10.1145/3625549.3658678); exact top-k in all steps on a GPU.

    τ adapts: with a change of the threshold of less than a tenth it grows by 1, of a twentieth by 2; with more it
    shrinks by 1, with more than a fifth by 2, but not below 5 (or `reuse`). Where fewer than 0.7 k or more than 2 k
    elements pass, the selection is exact at once; of more than k that pass the k largest are sent.
    """

    ratio: float = 0.01
    reuse: int = 5
    """τ at first, in steps."""
    warmup: int = 15
    """The first steps, which are exact."""
    value_bits: Literal[32, 4] = 32
    divisible = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reuse < 1 or self.warmup < 0:
            raise ValueError(
                f"reuse={self.reuse}, warmup={self.warmup} count steps, the first of them from 1 on; "
                "use e.g. reuse=5, warmup=15"
            )

    def init_group(self) -> dict[str, Tensor]:
        return {
            "reused": torch.tensor([0.0, self.reuse, 0.0], dtype=torch.float32, device="cpu")
        }  # threshold, τ, steps since it was exact

    def select_by_threshold(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        threshold, tau, age = context.group["reused"].tolist()
        # select by the threshold that was kept, where it still fits
        reuses = context.step >= self.warmup and age < tau and threshold
        if reuses and (chosen := passing(x, threshold, k)) is not None:
            context.group.stage("reused", torch.tensor([threshold, tau, age + 1], dtype=torch.float32, device="cpu"))
            return chosen
        # else select exactly, and adapt τ to how much the threshold changed
        indices = backend_for(x).top_k(x, k)
        smallest = x[indices].abs().amin() if len(indices) else x.new_zeros(())
        tau = self._adapted(tau, threshold, smallest)
        # keep the new threshold for the steps that follow
        context.group.stage("reused", torch.stack([smallest, tau, torch.ones_like(tau)]))
        return indices

    def _adapted(self, tau: float, old: float, new: Tensor) -> Tensor:
        if not old:
            return torch.full_like(new, tau)
        # the change in tenths of the old threshold
        change = (new - old).abs() / old * 10
        grows, shrinks = 1 + (change < 0.5).to(change.dtype), -1 - (change > 2).to(change.dtype)
        return (tau + torch.where(change < 1, grows, shrinks)).clamp(min=min(SHORTEST, self.reuse))
