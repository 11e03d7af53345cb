"""The state of all ranks, gathered on rank 0; and which rank has what of a state."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from gradwire.checkpoint import GROUP, StateDict, Unpacked, each_tensor, is_small, pack
from gradwire.compressors.context import SHARED
from gradwire.options import dtype_name, dtype_of
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.meeting import Facts
from gradwire.runtime.state.store import Held
from gradwire.slots import Slot
from gradwire.transports import Mesh

PIECE = 1 << 22
"""Elements that are gathered at a time, so that a GPU needs little scratch memory."""

Small = Sequence[tuple[str, str, str, Sequence[int]]]
"""For each small tensor of a rank parameter, name, type and shape."""
Rows = Iterator[tuple[str, str, Tensor]]
"""Parameter, name, and a tensor (ranks, *shape) with a row for each rank."""


def kept_by(own: Unpacked, slots: Sequence[Slot]) -> Facts:
    """This rank's part of `held_by_some`. For each kind of state of gradient size it has a digit for each slot: 1 where
    this rank keeps that state, else 0."""
    kinds = sorted({key for _, key, _ in each_tensor(own.exported) if not is_small(key)})
    return {"kept": json.dumps({
        kind: "".join("01"[kind in own.exported.get(slot.name, {})] for slot in slots) for kind in kinds
    })}  # fmt: skip


def held_by_some(facts: Sequence[Facts], slots: Sequence[Slot]) -> Held:
    """The kinds of state of gradient size that some rank keeps, by parameter, from all ranks' `kept_by`."""
    ranks = [json.loads(kept) for kept in {its["kept"] for its in facts}]
    return {
        slot.name: {kind for own in ranks for kind, has in own.items() if has[i] == "1"} for i, slot in enumerate(slots)
    }


def gather(own: Unpacked, slots: Sequence[Slot], mesh: Mesh, agreement: Agreement, device: torch.device) -> StateDict:
    """The state of all ranks, on rank 0; the others get the part that is equal on all. All ranks call this together,
    with their `own`."""
    # over the store: which state each rank has, and which small tensors
    own_facts = {**kept_by(own, slots), "small": json.dumps(_small(own))}
    facts = agreement.gather("state_dict(all_ranks=True)", own_facts)
    # what is equal on all ranks is this rank's own
    exported = {
        name: {key: t.cpu() for key, t in tensors.items() if key.startswith(SHARED)}
        for name, tensors in own.exported.items()
    }
    # the rest has a row for each rank
    flat = _flat_rows(own, slots, held_by_some(facts, slots), mesh, device)
    small = _small_rows(own, [json.loads(its["small"]) for its in facts], mesh, device)
    for name, key, rows in chain(flat, small):
        if mesh.rank == 0:
            exported.setdefault(name, {})[key] = rows
    job = {name: tensor.cpu() for name, tensor in own.job.items()}
    return pack(exported, job, own.step, replace(own.about, gathered=True))


def _flat_rows(own: Unpacked, slots: Sequence[Slot], held: Held, mesh: Mesh, device: torch.device) -> Rows:
    """The state of gradient size that some rank has; zeros of a rank that has none."""
    for slot in slots:
        for kind in sorted(held[slot.name]):
            mine = own.exported.get(slot.name, {}).get(kind)
            flat = torch.zeros(slot.numel, dtype=torch.float32, device=device) if mine is None else mine.reshape(-1)
            rows = torch.cat([mesh.gather(piece).cpu() for piece in flat.split(PIECE)], 1)
            yield slot.name, kind, rows.view(mesh.ranks, *slot.shape)


def _small(own: Unpacked) -> Small:
    """The small tensors that this rank keeps."""
    return [
        (name, key, dtype_name(tensor.dtype), [*tensor.shape])
        for name, key, tensor in each_tensor(own.exported)
        if key.startswith(GROUP)
    ]


def _small_rows(own: Unpacked, small: Sequence[Small], mesh: Mesh, device: torch.device) -> Rows:
    """The small tensors that some rank has; a rank without one gets the row of the first rank that has it."""
    # of each the type and shape of the first rank that has it
    likes = {(name, key): (dtype, shape) for its in reversed(small) for name, key, dtype, shape in its}
    for name, key, *kind in (each for its in small for each in its):
        if kind != [*likes[name, key]]:
            raise ValueError(
                f"ranks keep {key!r} of {name!r} in different shapes; save handle.state_dict() of each rank"
            )
    if not likes:
        return
    # the bytes of all of them, in an order that all ranks know: one collective
    empty = {
        at: torch.zeros(shape, dtype=dtype_of(dtype), device=device) for at, (dtype, shape) in sorted(likes.items())
    }
    parts = [own.exported.get(name, {}).get(key, like).to(device) for (name, key), like in empty.items()]
    parts = [part.reshape(-1).view(torch.uint8) for part in parts]
    rows = mesh.gather(torch.cat(parts)).cpu().split([part.numel() for part in parts], 1)
    have = [{(name, key) for name, key, _, _ in its} for its in small]
    for ((name, key), like), part in zip(empty.items(), rows, strict=True):
        first = next(rank for rank, its in enumerate(have) if (name, key) in its)
        chosen = part[[rank if (name, key) in its else first for rank, its in enumerate(have)]]
        yield name, key, chosen.view(like.dtype).view(mesh.ranks, *like.shape)
