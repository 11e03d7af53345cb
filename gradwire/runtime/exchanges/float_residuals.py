"""Float32 vectors in which groups compute their next residuals, where these are kept in another type.

A group needs its vector from its first turn to its last. Groups that are never under way together share one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.ops.workspace import Workspace
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.script import script, under_way


class FloatResiduals:
    """The vectors of a job's groups."""

    def __init__(self, device: torch.device) -> None:
        self._workspace = Workspace(device)
        self.follow([])

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors."""
        return self._workspace.nbytes

    def follow(self, exchanges: Sequence[GroupExchange]) -> None:
        """Drops all vectors: from now on the plan has these groups."""
        self._workspace.clear()
        self._exchanges, self._now = exchanges, dict[int, Tensor]()

    def begin(self, groups: Sequence[int]) -> None:
        """Begins a step of these groups."""
        self._now = self._workspace.once(tuple(groups), lambda: self._made(groups))

    def of(self, group: int) -> Tensor | None:
        """The vector (n,) of a group of the step; None for one that needs none."""
        return self._now.get(group)

    def _made(self, groups: Sequence[int]) -> dict[int, Tensor]:
        """The vectors of a step of these groups."""
        sizes = {
            group: exchange.stored.layout.numel
            for group in groups
            if (exchange := self._exchanges[group]).compresses and exchange.rounds_residual
        }
        # one vector for each place in the pipeline, as long as the largest group that takes it
        places = under_way(script(groups, [exchange.rounds for exchange in self._exchanges]))
        largest = {places[group]: n for group, n in sorted(sizes.items(), key=lambda each: each[1])}
        vectors = {place: self._workspace.tensor(f"{place}", (n,)) for place, n in largest.items()}
        return {group: vectors[places[group]][:n] for group, n in sizes.items()}
