"""Whether replicas are alike: every rank's checksums of what it holds are compared, and what differs is mended."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.ops.checksum import checksum
from gradwire.runtime.naming import ranks_named
from gradwire.transports.mesh import SAME, Mesh


@dataclass(frozen=True)
class Difference:
    """A parameter that ranks which hold the same part of it do not hold alike: those ranks, in sets of equals, the
    largest first."""

    name: str
    equals: Sequence[Sequence[int]]

    @property
    def source(self) -> int | None:
        """A rank that has what more than half of them have."""
        most = self.equals[0]
        return most[0] if 2 * len(most) > sum(map(len, self.equals)) else None

    def __str__(self) -> str:
        most, *others = map(ranks_named, self.equals)
        return f"parameter {self.name!r} has other values on {' and on '.join(others)} than on {most}"


def differences(held: Mapping[str, Tensor], mesh: Mesh, device: torch.device) -> list[Difference]:
    """What ranks hold that is to be alike and is not. All of them call this together, and get the same.

    1. All gather a checksum of all that each holds, 8 bytes. Mostly those are alike, and this is all.
    2. Else they gather one of each tensor.
    """
    own = torch.stack([checksum(tensor) for tensor in held.values()]).to(device)
    together = mesh.gather(checksum(own).view(1)).flatten().tolist()
    if not any(_unequal(together, part) for part in mesh.alike):
        return []
    columns = dict(zip(held, mesh.gather(own).T.tolist(), strict=True))
    return [
        Difference(name, equals)
        for name, sums in columns.items()
        for part in mesh.alike
        if (equals := _unequal(sums, part))
    ]


def _unequal(sums: Sequence[int], ranks: Sequence[int]) -> list[list[int]]:
    """These ranks, in sets of equals, the largest first; none where all are equal."""
    sets: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        sets[sums[rank]].append(rank)
    return sorted(sets.values(), key=len, reverse=True) if len(sets) > 1 else []


def mend(held: Mapping[str, Tensor], found: Sequence[Difference], mesh: Mesh, device: torch.device) -> None:
    """Gives ranks what most of those have that should be alike. All call this together, with what all have found."""
    for difference in found:
        source = difference.source
        assert source is not None
        if any(mesh.rank in ranks for ranks in difference.equals):
            mesh.share([held[difference.name]], device, source=source, axes=SAME)
