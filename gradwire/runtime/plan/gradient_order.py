"""The order in which backward makes a model's gradients, as rank 0 saw it in the first step."""

from collections.abc import Sequence
from functools import partial

import torch

from gradwire.runtime.steps.pipeline import Pipeline
from gradwire.slots import Slot


class GradientOrder:
    """The order of gradients, by slots' names: recorded on each rank in the first step, then rank 0's on all."""

    names: tuple[str, ...] = ()
    """The slots as their gradients became ready, once known."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._seen = list[int]()

    def became_ready(self, slot: int) -> None:
        """Records that backward has made a slot's gradient; on the thread that trains."""
        self._seen.append(slot)

    def agree(self, pipeline: Pipeline, device: torch.device) -> None:
        """Makes rank 0's order that of all ranks, which call this together."""
        # this rank's order; slots that had no gradient come last
        seen = dict.fromkeys([*self._seen, *range(len(self._slots))])
        order = torch.tensor(list(seen), dtype=torch.int64, device=device)
        pipeline.together(partial(pipeline.mesh.share, [order], device))
        self.names = tuple(self._slots[slot].name for slot in order.tolist())

    def sorted(self, slots: Sequence[Slot]) -> list[Slot]:
        """The slots in the known order, and then the others."""
        place = {name: place for place, name in enumerate(self.names)}
        return sorted(slots, key=lambda slot: place.get(slot.name, len(place)))
