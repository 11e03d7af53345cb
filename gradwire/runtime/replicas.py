"""Equal replicas: their checksums are compared, what differs is mended, and nested state is broadcast from rank 0."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.ops.checksum import checksum
from gradwire.ops.host import on_host, to_device
from gradwire.options import dtype_name, dtype_of
from gradwire.text_tensors import letters, text_of
from gradwire.transports.gathering import ranks_named
from gradwire.transports.mesh import SAME, Mesh


@dataclass(frozen=True)
class Difference:
    """A parameter in which replicas differ."""

    name: str
    equals: Sequence[Sequence[int]]
    """The ranks that hold the same part of it, in sets of equal ones, the largest first."""

    @property
    def source(self) -> int | None:
        """A rank of the majority; None where no set has more than half of the ranks."""
        most = self.equals[0]
        return most[0] if 2 * len(most) > sum(map(len, self.equals)) else None

    def __str__(self) -> str:
        most, *others = map(ranks_named, self.equals)
        return f"parameter {self.name!r} has other values on {' and on '.join(others)} than on {most}"


def differences(held: Mapping[str, Tensor], mesh: Mesh, device: torch.device) -> list[Difference]:
    """The parameters in which replicas differ. All ranks call this together, and get the same.

    1. All gather one checksum of everything, 8 bytes. Mostly these are equal, and this is all.
    2. Else they gather one of each tensor.
    """
    # one number for everything: equal in nearly every call
    own = torch.stack([checksum(tensor) for tensor in held.values()]).to(device)
    together = mesh.gather(checksum(own).view(1)).flatten().tolist()
    if not any(_unequal(together, part) for part in mesh.same_parts):
        return []
    # one for each tensor, to find those that differ
    columns = dict(zip(held, mesh.gather(own).T.tolist(), strict=True))
    return [
        Difference(name, equals)
        for name, sums in columns.items()
        for part in mesh.same_parts
        if (equals := _unequal(sums, part))
    ]


def _unequal(sums: Sequence[int], ranks: Sequence[int]) -> list[list[int]]:
    """These ranks in sets of equal ones, the largest first; none where all are equal."""
    sets: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        sets[sums[rank]].append(rank)
    return sorted(sets.values(), key=len, reverse=True) if len(sets) > 1 else []


def mend(held: Mapping[str, Tensor], found: Sequence[Difference], mesh: Mesh, device: torch.device) -> list[str]:
    """Gives all replicas the majority's values; returns the names of parameters that were wrong on this rank. All ranks
    call this together, with the differences found."""
    for difference in found:
        source = difference.source
        assert source is not None
        # the ranks that hold this part, whichever have the wrong values
        if any(mesh.rank in ranks for ranks in difference.equals):
            mesh.share([held[difference.name]], device, source=source, axes=SAME)
    return [each.name for each in found if any(mesh.rank in ranks for ranks in each.equals[1:])]


Tree = Any
"""Tensors, numbers, texts and None, in dictionaries, lists and tuples."""


def from_first(tree: Tree, mesh: Mesh, device: torch.device) -> tuple[Tree, str]:
    """Broadcasts nested state from rank 0; all ranks call this together. What is on a GPU there comes to `device`.
    Where something else is in it, none comes, but the reason, on all ranks."""
    tensors: list[Tensor] = []
    # its structure as text, or the reason why it cannot be sent
    text = _written(tree, tensors) if mesh.rank == 0 else ""
    read = json.loads(_text_from_first(text, mesh, device))
    if "error" in read:
        return None, read["error"]
    # then its tensors, one after another
    own = iter(tensors)

    def tensor(dtype: str, shape: list[int], host: bool) -> Tensor:
        """The next one of rank 0's."""
        mine = next(own) if mesh.rank == 0 else torch.empty(shape, dtype=dtype_of(dtype), device="cpu")
        given = mine.detach().to("cpu" if host else device, copy=True).contiguous()
        # what belongs on the host is never whole on the device
        mesh.share([given], device)
        return given

    return _read(read["tree"], tensor), ""


def _written(tree: Tree, tensors: list[Tensor]) -> str:
    """The tree as JSON, or the reason why it cannot be sent."""
    try:
        return json.dumps({"tree": _plain(tree, tensors)})
    except ValueError as error:
        return json.dumps({"error": str(error)})


def _text_from_first(text: str, mesh: Mesh, device: torch.device) -> str:
    # its length, then its letters
    length = to_device(torch.tensor([len(text.encode())], dtype=torch.int64, device="cpu"), device)
    mesh.share([length], device)
    own = letters(text) if mesh.rank == 0 else torch.zeros(int(length), dtype=torch.uint8, device="cpu")
    shared = to_device(own, device)
    mesh.share([shared], device)
    return text_of(shared)


def _plain(tree: Tree, tensors: list[Tensor]) -> Any:
    """The tree as JSON takes it, with the type and shape of its tensors, which are added to `tensors`."""
    match tree:
        case Tensor():
            # only what is dense and there can be sent
            if tree.layout != torch.strided or tree.is_quantized or tree.is_meta:
                raise ValueError(
                    "a sparse, quantized or meta tensor in a state cannot be sent to other ranks; make it dense"
                )
            tensors.append(tree)
            return {"tensor": [dtype_name(tree.dtype), list(tree.shape), on_host(tree.device)]}
        case dict():
            # containers, whose keys need not be texts
            return {"dict": [[_plain(key, tensors), _plain(tree[key], tensors)] for key in tree]}  # pyright: ignore
        case list():
            return [_plain(value, tensors) for value in tree]  # pyright: ignore
        case tuple():
            return {"tuple": [_plain(value, tensors) for value in tree]}  # pyright: ignore
        case None | bool() | int() | float() | str():
            return tree
        case _:
            raise ValueError(
                f"a {type(tree).__name__} in a state cannot be sent to other ranks; tensors and numbers can"
            )


def _read(plain: Any, tensor: Callable[[str, list[int], bool], Tensor]) -> Tree:
    """The inverse of `_plain`."""
    match plain:
        case list():
            return [_read(value, tensor) for value in plain]  # pyright: ignore
        case {"tensor": description}:
            return tensor(*description)  # pyright: ignore
        case {"tuple": values}:
            return tuple(_read(value, tensor) for value in values)  # pyright: ignore
        case {"dict": pairs}:
            return {_read(key, tensor): _read(value, tensor) for key, value in pairs}  # pyright: ignore
        case _:
            return plain
