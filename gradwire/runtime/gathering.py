"""The state of all ranks in one state dict, which survives a framework that saves rank 0's alone."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwire.checkpoint import GROUP, SHARED, StateDict, Unpacked, pack
from gradwire.collective import HOST, REPLICA
from gradwire.runtime.agreement import Agreement
from gradwire.slots import Slot
from gradwire.transports import Mesh

PIECE = 1 << 22
"""Elements that are gathered at a time, so that a GPU needs room for little."""

Kept = dict[str, dict[str, Tensor]]


def check(mesh: Mesh) -> None:
    """Raises ValueError where ranks keep different shards."""
    if other := mesh.axes.keys() - {REPLICA, HOST}:
        raise ValueError(f"ranks along {min(other)!r} keep different shards; give dcp.save() handle.stateful()")


def gather(own: Unpacked, slots: Sequence[Slot], mesh: Mesh, agreement: Agreement, device: torch.device) -> StateDict:
    """What all ranks keep, for rank 0; the others get what all have alike. All ranks call this together, with what is
    their `own`."""
    told = agreement.tell("state_dict(all_ranks=True)", {"kinds": json.dumps(_kinds(own)), "small": _small(own)})
    kinds = sorted({kind for words in told for kind in json.loads(words["kinds"])})
    exported = {
        name: {key: t.cpu() for key, t in tensors.items() if key.startswith(SHARED)}
        for name, tensors in own.exported.items()
    }
    _gather_flat(own, slots, kinds, mesh, device, exported)
    if mesh.rank == 0:
        _add_small([json.loads(words["small"]) for words in told], exported)
    return pack(exported, own.job, own.step, replace(own.about, gathered=True))


def _kinds(own: Unpacked) -> list[str]:
    """What this rank keeps of gradient size."""
    return list({key for tensors in own.exported.values() for key in tensors if not key.startswith((SHARED, GROUP))})


def _gather_flat(
    own: Unpacked, slots: Sequence[Slot], kinds: Sequence[str], mesh: Mesh, device: torch.device, exported: Kept
) -> None:
    """Adds to rank 0's `exported` the rows of all ranks of what some rank has."""
    pairs = [(slot, kind) for slot in slots for kind in kinds]
    has = torch.tensor(
        [float(kind in own.exported.get(slot.name, {})) for slot, kind in pairs], dtype=torch.float32, device=device
    )
    if pairs:
        mesh.sum(has)
    for slot, kind in (pair for pair, ranks in zip(pairs, has.tolist(), strict=True) if ranks):
        mine = own.exported.get(slot.name, {}).get(kind)
        rows = _rows(torch.zeros(slot.numel, dtype=torch.float32, device=device) if mine is None else mine, slot, mesh)
        if mesh.rank == 0:
            exported.setdefault(slot.name, {})[kind] = rows


def _rows(mine: Tensor, slot: Slot, mesh: Mesh) -> Tensor:
    """Every rank's tensor of a slot, (ranks, *shape)."""
    pieces = [mesh.gather(piece).cpu() for piece in mine.reshape(-1).split(PIECE)]
    return torch.cat(pieces, 1).view(mesh.ranks, *slot.shape)


def _small(own: Unpacked) -> str:
    """This rank's small tensors as JSON: by parameter and name the type and the numbers."""
    small: dict[str, dict[str, object]] = {name: {} for name in own.exported}
    for name, tensors in own.exported.items():
        for key, tensor in tensors.items():
            if key.startswith(GROUP):
                small[name][key] = [str(tensor.dtype).removeprefix("torch."), tensor.tolist()]
    return json.dumps(small)


def _add_small(told: Sequence[Mapping[str, Mapping[str, tuple[str, object]]]], exported: Kept) -> None:
    """Adds a row per rank to `exported`; a rank that has none gets another's."""
    for name, key in {(name, key) for words in told for name, kept in words.items() for key in kept}:
        rows = [words.get(name, {}).get(key) for words in told]
        dtype, instead = next(row for row in rows if row)
        numbers = [instead if row is None else row[1] for row in rows]
        exported.setdefault(name, {})[key] = torch.tensor(numbers, dtype=getattr(torch, dtype), device="cpu")
