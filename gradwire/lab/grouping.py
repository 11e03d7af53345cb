"""Which tensors travel together, where a configuration says it: `25mb` of gradient at most, or `4` groups."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from gradwire.compressors import Compressor
from gradwire.layout import Slot
from gradwire.plan import Plan

_MEGABYTES = re.compile(r"(\d+(?:\.\d+)?)mb")
MB = 1 << 20
"""As DDP counts its buckets."""


@dataclass(frozen=True)
class Grouping:
    """Groups of at most `megabytes` of gradient, where 0 is every tensor by itself; or so many `groups` with
    equally many tensors."""

    megabytes: float | None = None
    groups: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `25mb` or `4`. Raises ValueError for anything else."""
        if match := _MEGABYTES.fullmatch(text):
            return cls(megabytes=float(match[1]))
        if text.isdecimal() and int(text):
            return cls(groups=int(text))
        raise ValueError(f"@{text} is no grouping: write @25mb for up to 25 MB a group, @4 for 4 groups, or @hybrid")

    def check(self, compressor: Compressor) -> None:
        """Any compressor can be grouped."""

    def regroup(self, plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> Plan:
        """`plan` with the slots that `compressor` compresses cut anew; the others travel as planned."""
        mine = [group for group in plan.groups if group.compressor == compressor]
        others = [group for group in plan.groups if group not in mine]
        names = {name for group in mine for name in group.slots}
        cut = self._cut([slot for slot in slots if slot.name in names])
        return Plan((*(replace(mine[0], slots=_names(part)) for part in cut), *others))

    def _cut(self, slots: Sequence[Slot]) -> list[Sequence[Slot]]:
        if self.groups is None:
            return self._filled(slots)
        count = min(self.groups, len(slots))
        bounds = [len(slots) * part // count for part in range(count + 1)]
        return [slots[start:end] for start, end in pairwise(bounds)]

    def _filled(self, slots: Sequence[Slot]) -> list[Sequence[Slot]]:
        assert self.megabytes is not None
        parts: list[list[Slot]] = [[]]
        for slot in slots:
            if parts[-1] and sum(4 * other.numel for other in [*parts[-1], slot]) > self.megabytes * MB:
                parts.append([])
            parts[-1].append(slot)
        return list(parts)


def _names(slots: Sequence[Slot]) -> tuple[str, ...]:
    return tuple(slot.name for slot in slots)
