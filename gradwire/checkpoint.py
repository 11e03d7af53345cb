"""State dicts of tensors only, with a description of themselves, and the rule for another number of ranks."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from gradwire.compressors.context import SHARED
from gradwire.ops.checksum import checksum
from gradwire.options import check_type, dtype_name
from gradwire.resharding import predecessors
from gradwire.slots import Slot
from gradwire.state_description import ABOUT, About, describe, read_description

StateDict = dict[str, Tensor]
"""{"step": int64 (), "about": uint8 (n,), "<parameter>//<name>": tensor}: safe for `torch.load(weights_only=True)`.

"about" is JSON, see `About`, with the type, shape and checksum of every other tensor, and its own checksum. In a
parameter's name "/" is written "~1" and "~" "~0", as in JSON Pointer (RFC 6901). Tensors of the job have no parameter:
"//<name>". Small ones that are equal on all ranks, or with shards on all replicas of one, are named "shared/...". All
others are a rank's own, and (ranks, *shape) in a state of all ranks: small ones, "group/...", and those of the
parameter's shape."""

SEPARATOR, STEP, GROUP = "//", "step", "group/"
SHARDED = "ranks have different shards; give dcp.save() handle.stateful()"
ROUNDS = "load each rank's own; to go on with other ranks save optimizer.stateful(), and load optimizer.stateful(path)"

Exported = Mapping[str, Mapping[str, Tensor]]
"""By parameter and name."""


@dataclass(frozen=True)
class Unpacked:
    """A state dict that was read: the tensors of each parameter, and those of the job."""

    exported: dict[str, dict[str, Tensor]]
    """By parameter and name."""
    job: dict[str, Tensor]
    """By name, what belongs to no parameter: the plan's and the controller's."""
    step: int
    """The steps that were made."""
    about: About

    def facts(self, sharded: bool = False) -> dict[str, str]:
        """The facts in which all ranks' states are equal; where they are `sharded`, small tensors may differ, and what
        a controller has seen of shards."""
        # small tensors and the controller's state are the same on all ranks, and hashed
        common: StateDict = {}
        if not sharded:
            common |= {key_of(name, key): t for name, key, t in each_tensor(self.exported) if key.startswith(SHARED)}
            common |= {SEPARATOR + key: tensor for key, tensor in self.job.items()}
        return {
            "the state's ranks": f"{'all of ' if self.about.gathered else ''}{self.about.ranks}",
            "the state's shard": self.about.shard or "all of the model",
            "the state's step": str(self.step),
            "the state's training": self.about.training or "unknown",
            "the steps that the state skipped": str(self.about.skipped),
            "the state's plan": _digest([self.about.plan.encode(), *(name.encode() for name in self.about.order)]),
            "the momenta of the state": _digest([json.dumps(self.about.momenta, sort_keys=True).encode()]),
            "what the states have in common": _digest(_bytes_of(common)),
        }

    def of_rank(self, rank: int, ranks: int, rounds: bool = False) -> "Unpacked":
        """The part that one of `ranks` ranks loads. Raises ValueError, naming the call that works, also for `rounds` of
        local steps, without one."""
        about = self.about
        if about.gathered and about.rank == 0:
            return self._part(rank, ranks)
        if about.gathered:
            raise ValueError(f"rank {about.rank} has nothing of a state of all ranks; save and load what rank 0 got")
        if (about.rank, about.ranks) == (rank, ranks):
            return self
        load = "load each rank's own" if about.ranks == ranks else f"load gw.reshard([every rank's], {ranks})[{rank}]"
        load = SHARDED if about.shards > 1 else f"{load}, or what rank 0 got from handle.state_dict(all_ranks=True)"
        load = ROUNDS if rounds else load
        raise ValueError(f"this is {about}, and here is rank {rank} of {ranks}; {load}")

    def check(self, slots: Sequence[Slot], others: Collection[str]) -> None:
        """Raises ValueError for a parameter that the model lacks or has in another shape. Drops `others`."""
        shapes = {slot.name: slot.shape for slot in slots}
        # parameters that the model has, and does not reduce, are left out
        for name in others:
            self.exported.pop(name, None)
        for name, key, tensor in each_tensor(self.exported):
            if name not in shapes:
                raise ValueError(f"the state has parameter {name!r}, which the model lacks; load what this model saved")
            if not is_small(key) and tuple(tensor.shape) != shapes[name]:
                raise ValueError(
                    f"the state's {key} of {name!r} is {tuple(tensor.shape)}, and the parameter {shapes[name]}; "
                    "load what this model saved"
                )

    def check_rows(self) -> None:
        """Raises ValueError where a state of all ranks lacks some of them."""
        for name, key, tensor in each_tensor(self.exported) if self.about.gathered else ():
            if not key.startswith(SHARED) and (not tensor.dim() or len(tensor) != self.about.ranks):
                raise ValueError(f"the state's {key} of {name!r} has not a row for each of {self.about.ranks} ranks")

    def _part(self, rank: int, ranks: int) -> "Unpacked":
        """The state of one of `ranks` ranks that go on from a state of all."""
        before = predecessors(rank, ranks, self.about.ranks)

        def part(key: str, tensor: Tensor) -> Tensor:
            # equal on all ranks; else one old rank's, or the sum of several
            if key.startswith(SHARED):
                return tensor
            return tensor[before.own] if key.startswith(GROUP) else tensor[before.memories].sum(0)

        exported = {
            name: {key: part(key, tensor) for key, tensor in tensors.items()} for name, tensors in self.exported.items()
        }
        return replace(self, exported=exported, about=replace(self.about, rank=rank, ranks=ranks, gathered=False))


def pack(exported: Exported, job: Mapping[str, Tensor], step: int, about: About) -> StateDict:
    """A copy of all this as a state dict, of contiguous tensors."""
    everything = {**exported, "": job}
    tensors = {
        key_of(name, key): tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, key, tensor in each_tensor(everything)
    }
    tensors[STEP] = torch.tensor(step, dtype=torch.int64, device="cpu")
    kinds = {key: [sum_of(tensor), *_kind(tensor)] for key, tensor in tensors.items()}
    return tensors | {ABOUT: describe(about, kinds)}


def unpack(state: Mapping[str, Tensor]) -> Unpacked:
    """The inverse of `pack`. Raises ValueError for a state that is not whole, or none."""
    check_type("state", state, (Mapping,), "handle.state_dict()", optional=False)
    for key, tensor in state.items():
        if not isinstance(key, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"{key!r} is no tensor of a Gradwire state; pass what handle.state_dict() returned")
    # the description first: it says what the tensors must be
    try:
        about, kinds = _read_about(state)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"this is no Gradwire state ({error}); pass what handle.state_dict() returned") from error
    tensors = {key: tensor for key, tensor in state.items() if key != ABOUT}
    _check_tensors(tensors, kinds)
    step, exported = int(tensors.pop(STEP)), dict[str, dict[str, Tensor]]()
    # then the tensors by parameter
    for key, tensor in tensors.items():
        name, kind = split(key)
        exported.setdefault(name, {})[kind] = tensor
    read = Unpacked(exported, exported.pop("", {}), step, about)
    read.check_rows()
    return read


def gather(states: Sequence[StateDict]) -> StateDict:
    """The states of all ranks of one job, in their order, as one that any number of ranks can load, on the CPU. Raises
    ValueError where they do not belong together."""
    # they must be whole, in order, and of one moment
    read = [unpack(state) for state in states]
    if not read:
        raise ValueError("there is no state here; pass every rank's, in their order")
    first = read[0].facts()
    for rank, one in enumerate(read):
        if one.about.gathered or (one.about.rank, one.about.ranks) != (rank, len(states)):
            raise ValueError(f"state {rank} of these {len(states)} is {one.about}; pass every rank's, in their order")
        if one.about.shards > 1:
            raise ValueError(f"state {rank} of these {len(states)} is {one.about}; {SHARDED}")
        for what, fact in one.facts().items():
            if fact != first[what]:
                raise ValueError(f"rank {rank} and rank 0 differ in {what}; pass states that were saved together")
    # for every tensor that some rank has, a row of each rank; each state may lie on its rank's GPU
    likes = {(name, key): tensor.cpu() for one in read[::-1] for name, key, tensor in each_tensor(one.exported)}
    exported: dict[str, dict[str, Tensor]] = {}
    for (name, key), like in likes.items():
        # a rank without a memory has zeros; one without small state gets another rank's
        instead = like if key.startswith(GROUP) else torch.zeros_like(like)
        rows = torch.stack([one.exported.get(name, {}).get(key, instead).cpu() for one in read])
        exported.setdefault(name, {})[key] = like if key.startswith(SHARED) else rows
    job = {name: tensor.cpu() for name, tensor in read[0].job.items()}
    return pack(exported, job, read[0].step, replace(read[0].about, gathered=True))


def reshard(states: Sequence[StateDict], world: int) -> list[StateDict]:
    """The states of all ranks of one job, in their order, as those of a job with `world` ranks, on the CPU.

    Memories are added up by the rule of `gradwire.resharding`; ranks that get none start with empty ones. The sum
    over the ranks of every residual is the same before and after, and what is equal on all ranks stays so. Raises
    ValueError where the states do not belong together, and for a `world` that is no number of ranks.
    """
    if type(world) is not int or world < 1:
        raise ValueError(f"world={world!r} is no number of ranks; use e.g. gw.reshard(states, 4)")
    whole = unpack(gather(states))
    parts = [whole.of_rank(rank, world) for rank in range(world)]
    return [pack(part.exported, part.job, part.step, part.about) for part in parts]


def _read_about(state: Mapping[str, Tensor]) -> tuple[About, dict[str, Any]]:
    """A state's description of itself, and of its tensors."""
    for key in (STEP, ABOUT):
        if key not in state:
            raise ValueError(f"it has no {key!r}")
    step = state[STEP]
    if step.dtype != torch.int64 or step.dim() or step < 0:
        raise ValueError(f"its step is {step.tolist()!r} of {step.dtype}")
    about, kinds = read_description(state[ABOUT])
    if not 0 <= about.skipped <= int(step):
        raise ValueError(f"it has skipped {about.skipped!r} of {int(step)} steps")
    return about, kinds


def _check_tensors(tensors: Mapping[str, Tensor], kinds: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the tensor, where one is not as it was saved."""
    for key in [*kinds, *tensors]:
        if key not in tensors:
            raise ValueError(f"the state lacks {key!r}, which was saved with it; pass all that state_dict() returned")
        if key not in kinds or (SEPARATOR not in key and key != STEP):
            raise ValueError(f"this is no Gradwire state (what is {key!r}?); pass what handle.state_dict() returned")
        saved_sum, saved = kinds[key]
        # of the same type and shape, with the same numbers
        if (kind := _kind(tensors[key])) != saved:
            raise ValueError(f"the state's {key!r} is {kind}, and was {saved} when it was saved; pass it as it was")
        if sum_of(tensors[key]) != saved_sum:
            raise ValueError(
                f"the state's {key!r} has other numbers than were saved under this key; pass it as it was, and give "
                "dcp.save() stateful(), not state_dict()"
            )
        # state of gradient size must be finite: it would spoil every later step
        if not key.startswith(SEPARATOR) and not tensors[key].isfinite().all():
            raise ValueError(f"the state's {key!r} is not finite; go on from an earlier checkpoint")


def key_of(name: str, kind: str) -> str:
    """The key of a parameter's tensor; of the job's where the name is empty."""
    return name.replace("~", "~0").replace("/", "~1") + SEPARATOR + kind


def split(key: str) -> tuple[str, str]:
    """The inverse of `key_of`."""
    name, _, kind = key.partition(SEPARATOR)
    return name.replace("~1", "/").replace("~0", "~"), kind


def sum_of(tensor: Tensor) -> str:
    """A tensor's checksum as text, always of the same length, so that states have the same size."""
    return f"{int(checksum(tensor.contiguous())) % 2**64:016x}"


def _kind(tensor: Tensor) -> list[Any]:
    return [dtype_name(tensor.dtype), *tensor.shape]


def is_small(kind: str) -> bool:
    """Whether a slot's or a group's tensor is of other than gradient size."""
    return kind.startswith((SHARED, GROUP))


def each_tensor(exported: Exported) -> Iterable[tuple[str, str, Tensor]]:
    """All tensors, with their parameter and name."""
    return [(name, key, tensor) for name, tensors in exported.items() for key, tensor in tensors.items()]


def _bytes_of(tensors: Mapping[str, Tensor]) -> Iterable[bytes]:
    for key in sorted(tensors):
        yield key.encode()
        yield tensors[key].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:12]
