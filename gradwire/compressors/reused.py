"""ReusedThreshold: an exact threshold now and then, and its reuse in between."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.compressors.context import GroupContext
from gradwire.compressors.sparse import Sparse
from gradwire.ops.select import top_k
from gradwire.ops.threshold import estimates_help, passing

SHORTEST = 5


@dataclass(frozen=True)
class ReusedThreshold(Sparse):
    """Exact top-k every τ steps, whose threshold selects in the steps between (ADTopk, HPDC 2024,
    https://doi.org/10.1145/3625549.3658678).

    The first `warmup` steps are exact. τ starts at `period` and adapts: with a change of the threshold of less
    than a tenth it grows by 1, of a twentieth by 2; with more it shrinks by 1, with more than a fifth by 2, but
    not below 5 (or `period`). Where fewer than 0.7 k or more than 2 k elements pass, the selection is exact at
    once, as it always is on CUDA; of more than k that pass the k largest are sent.
    """

    ratio: float = 0.01
    period: int = 5  # pyright: ignore[reportIncompatibleVariableOverride]
    warmup: int = 15
    value_bits: Literal[32, 4] = 32
    divisible = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period < 1 or self.warmup < 0:
            raise ValueError(f"period={self.period}, warmup={self.warmup} count steps; use period=5, warmup=15")

    def init_group(self) -> dict[str, Tensor]:
        return {"reused": torch.tensor([0.0, self.period, 0.0])}  # threshold, τ, steps since it was exact

    def select(self, x: Tensor, k: int, context: GroupContext) -> Tensor:
        if not estimates_help(x):
            return top_k(x, k)
        threshold, tau, age = context.group["reused"].tolist()
        reuse = context.step >= self.warmup and age < tau and threshold
        if reuse and (chosen := passing(x, threshold, k)) is not None:
            context.group.stage("reused", torch.tensor([threshold, tau, age + 1]))
            return chosen
        indices = top_k(x, k)
        smallest = float(x[indices].abs().min()) if len(indices) else 0.0
        context.group.stage("reused", torch.tensor([smallest, self._adapted(tau, threshold, smallest), 1.0]))
        return indices

    def _adapted(self, tau: float, old: float, new: float) -> float:
        if not old:
            return tau
        change = abs(new - old) / old * 10
        if change < 1:
            return tau + (2 if change < 0.5 else 1)
        return max(tau - (2 if change > 2 else 1), min(SHORTEST, self.period))
