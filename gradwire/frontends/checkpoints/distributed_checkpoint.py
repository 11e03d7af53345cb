"""A job's state for torch.distributed.checkpoint, which saves everything once and loads it on any mesh.

A residual differs between replicas: each holds the part of its gradients that has not been sent. So it is saved with an
axis for the replica in front, (replicas, *shape), each row by its replica and cut as the parameter is. To load, rows go
to the replicas that there are now by the rule of `gradwire.resharding`, cut as the parameter is now; each replica
adds up its own.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from gradwire.checkpoint import GROUP, SEPARATOR, STEP, StateDict, is_small, key_of, pack, split, unpack
from gradwire.frontends.checkpoints.saved_tensors import (
    Saved,
    check_known,
    said_by,
    state_in,
)
from gradwire.frontends.null_job import NullRuntime
from gradwire.frontends.values import is_sharded, or_zero
from gradwire.ops.host import kind_of
from gradwire.resharding import predecessors
from gradwire.runtime.runtime import Runtime
from gradwire.slots import real_shape
from gradwire.text_tensors import letters
from gradwire.torch_private.fully_shard import behind_rows, cuts_of
from gradwire.torch_private.reducer import shard_in

ABOUT = "gradwire"
"""The key by which a state is found in a checkpoint; its description."""

DESCRIBED = "plan", "order", "skipped", "momenta", "training"
"""The fields of `About` that the description has; Gradwire 0.2 wrote the first three."""

OWNER = re.compile(r" \((shard \d+ of \d+)(?:, replica (\d+) of (\d+))?\)$")
"""The end of a small tensor's key: its owner."""


@dataclass(frozen=True)
class ShardSpec:
    """A parameter's placement on `mesh`, whose first dimension counts replicas."""

    mesh: DeviceMesh
    shape: tuple[int, ...]
    """Its whole shape, as real numbers."""
    part: tuple[int, ...]
    """The shape of this rank's part."""
    device: torch.device
    """The parameter's."""
    cuts: tuple[Placement, ...] = ()
    """How it is cut along the mesh's other dimensions."""
    job: str = ""
    """Which shard all of the mesh's ranks have, where tensor parallelism beside DDP has cut the model; else ""."""

    def row(self, tensor: Tensor) -> DTensor:
        """This rank's state, in its slot's shape, as its part of (replicas, *shape)."""
        own = tensor.new_zeros(1, *self.part) if 0 in self.part else tensor.reshape(1, *self.part)
        return self._rows(own, self.mesh.size(0))

    def once(self, tensor: Tensor) -> DTensor:
        """A tensor that all replicas have, or one of them under a name of its own: cut as the parameter is."""
        own = tensor.new_zeros(self.part) if 0 in self.part else tensor.reshape(self.part)
        return self._cut(own, self.shape, [Replicate(), *self.cuts])

    def own(self, tensor: DTensor) -> Tensor:
        """This rank's part; of an empty one a single zero."""
        return or_zero(tensor.to_local())

    def no_rows(self, replicas: int) -> DTensor:
        """Zeros (replicas, *shape), to load the state of so many replicas into."""
        mine = predecessors(self.mesh.get_local_rank(0), self.mesh.size(0), replicas).memories
        return self._rows(
            torch.zeros(mine.stop - mine.start, *self.part, dtype=torch.float32, device=self.device), replicas
        )

    def kept(self, rows: DTensor) -> Tensor:
        """This rank's sum of the rows that it has loaded; of an empty part a single zero."""
        return or_zero(rows.to_local().sum(0))

    def _rows(self, local: Tensor, replicas: int) -> DTensor:
        return self._cut(local, (replicas, *self.shape), [Shard(0), *map(behind_rows, self.cuts)])

    def _cut(self, local: Tensor, shape: tuple[int, ...], cuts: list[Placement]) -> DTensor:
        whole = torch.empty(shape, dtype=torch.float32, device="meta")
        return DTensor.from_local(local, self.mesh, cuts, run_check=False, shape=whole.shape, stride=whole.stride())

    @property
    def shard(self) -> str:
        """The name of this rank's shard."""
        replica = self.mesh.mesh.reshape(self.mesh.size(0), -1)[self.mesh.get_local_rank(0)].tolist()
        return f"shard {replica.index(dist.get_rank())} of {len(replica)}"


def replicated_specs(group: dist.ProcessGroup, parameters: Mapping[str, Tensor]) -> dict[str, ShardSpec]:
    """The placement of parameters of which every rank of a group has a replica."""
    mesh = DeviceMesh.from_group(group, kind_of(next(iter(parameters.values())).device))
    shape, job = real_shape, shard_in(parameters.values())
    return {name: ShardSpec(mesh, shape(p), shape(p), p.device, job=job) for name, p in parameters.items()}


def job_of(placed: Mapping[str, ShardSpec]) -> str:
    """The shard of the model that a job has whose parameters lie there: several jobs have parameters of one name."""
    return next(iter(placed.values())).job


def sharded_specs(mesh: DeviceMesh, parameters: Mapping[str, Tensor]) -> dict[str, ShardSpec]:
    """The placement of sharded parameters on the mesh of all ranks. Raises ValueError where they are sharded along none
    of its dimensions."""
    return {name: _placed(mesh, parameter) for name, parameter in parameters.items() if is_sharded(parameter)}


def _placed(mesh: DeviceMesh, parameter: DTensor) -> ShardSpec:
    cuts: list[Placement] = [Replicate()] * mesh.ndim
    own, found = parameter.device_mesh, cuts_of(parameter)
    # the cuts of the parameter's own mesh, each along that dimension of the whole mesh that has the same ranks
    places = [_dimension(mesh, dist.get_process_group_ranks(own.get_group(dim))) for dim in found]
    for place, cut in zip(places, found.values(), strict=True):
        cuts[place] = cut
    # of two cuts of one dimension the second cuts what the first has left
    order = [(cut.dim, place) for place, cut in zip(places, found.values(), strict=True)]
    if sorted(order, key=itemgetter(0)) != sorted(order):
        raise ValueError(
            f"mesh= has its dimensions in another order than shards, {own.mesh_dim_names}; attach with one of that "
            "order, or save handle.state_dict() of each rank"
        )
    return ShardSpec(mesh, real_shape(parameter), real_shape(parameter.to_local()), parameter.device, tuple(cuts[1:]))


def _dimension(mesh: DeviceMesh, ranks: list[int]) -> int:
    for dim in range(1, mesh.ndim):
        if dist.get_process_group_ranks(mesh.get_group(dim)) == ranks:
            return dim
    raise ValueError(
        f"parameters are sharded over ranks {ranks}, which are no dimension of mesh=; attach with the whole"
    )


class DistributedState:
    """The state of a job, a `Stateful` for `dcp.save({"gradwire": ...})` and `dcp.load`. To load from another mesh, it
    needs the checkpoint's tensors as `saved`; once loaded, it saves the present state. Raises ValueError for parameters
    that the model lacks.

    Small tensors have keys of their own for each shard, and for each replica where these differ in them; replicas load
    them by the rule of `gradwire.resharding`. For shards of another size they are made anew. Of several jobs that
    each have a shard, each has a folder in the state."""

    def __init__(self, job: Runtime | NullRuntime, placed: Mapping[str, ShardSpec], saved: Saved) -> None:
        self._job = job
        self._placed = placed
        self._saved: Saved | None = saved
        first = next(iter(placed.values()))
        self._folder, self._shard = first.job, first.shard
        self._replica = first.mesh.get_local_rank(0)
        self._replicas = first.mesh.size(0)

    def state_dict(self) -> dict[str, Any]:
        """The tensors to save; or, to load, zeros like the saved ones."""
        return {self._folder: self._tensors()} if self._folder else self._tensors()

    def _tensors(self) -> dict[str, Tensor]:
        if self._saved:
            return {key: self._empty(key, kind) for key, kind in self._saved.items() if self._is_for_me(key)}
        # this rank's state: tensors of parameters become rows, small ones get names of their own
        own = unpack(self._job.state_dict(padded=True))
        tensors = {
            key_of(name, key): tensor
            for name, kept in {"": own.job, **own.exported}.items()
            for key, tensor in kept.items()
        }
        # what the state says of itself, as a tensor
        about = {field: getattr(own.about, field) for field in DESCRIBED}
        rows = {
            self._key(key): self._placed[_name(key)].row(tensor) if _is_flat(key) else tensor
            for key, tensor in tensors.items()
        }
        return {ABOUT: letters(json.dumps(about)), STEP: torch.tensor(own.step, dtype=torch.int64, device="cpu")} | rows

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a state that was loaded into `state_dict`. Raises ValueError without a checkpoint's tensors, by
        which some of the state may have been left out."""
        check_known(self._saved, "handle")
        self._job.load_state_dict(self.part(state[self._folder] if self._folder else state))
        self.loaded()

    def loaded(self) -> None:
        """From here on `state_dict` is this job's own state."""
        self._saved = None

    def part(self, state: Mapping[str, Tensor]) -> StateDict:
        """This rank's part of a state that was loaded into `state_dict`."""
        saved, step = said_by(state[ABOUT]), int(state[STEP])
        here = unpack(self._job.state_dict(padded=False)).about
        about = replace(here, **{field: saved[field] for field in DESCRIBED if field in saved})
        exported: dict[str, dict[str, Tensor]] = {}
        # this rank's sum of the rows of each memory, and the small tensors that are its own
        for key, tensor in state.items():
            if SEPARATOR in key:
                name, kind = split(OWNER.sub("", key))
                mine = self._placed[name].kept(tensor) if is_sharded(tensor) else tensor
                exported.setdefault(name, {})[kind] = mine
        return pack(exported, exported.pop("", {}), step, about)

    def _key(self, key: str) -> str:
        if not _is_small(key):
            return key
        replica = f", replica {self._replica} of {self._replicas}" if _kind(key).startswith(GROUP) else ""
        return f"{key} ({self._shard}{replica})"

    def _is_for_me(self, key: str) -> bool:
        if (owner := OWNER.search(key)) is None:
            return True
        # a name without replica is for all; else for the replica that takes over the old one
        shard, replica, old = owner.groups()
        if replica is None:
            return shard == self._shard
        return shard == self._shard and int(replica) == predecessors(self._replica, self._replicas, int(old)).own

    def _empty(self, key: str, kind: TensorStorageMetadata) -> Tensor:
        if _is_flat(key) and _name(key) not in self._placed:
            raise ValueError(
                f"the state has parameter {_name(key)!r}, which is not reduced here; load this model's own"
            )
        if _is_flat(key):
            return self._placed[_name(key)].no_rows(kind.size[0])
        return torch.zeros(kind.size, dtype=kind.properties.dtype, device="cpu")


def _name(key: str) -> str:
    return split(key)[0]


def _kind(key: str) -> str:
    return split(key)[1]


def _is_small(key: str) -> bool:
    return is_small(_kind(key))


def _is_flat(key: str) -> bool:
    """Whether the key's tensor has the parameter's shape."""
    return bool(_name(key)) and SEPARATOR in key and not _is_small(key)


def saved_in(checkpoint: str | Path | StorageReader | None, key: str | None, job: str) -> Saved:
    """The tensors of a checkpoint's Gradwire state, of several the one saved under `key`, in the folder of a `job` if
    that has one; none without a checkpoint. Raises ValueError where it has none, or several and no key that fits."""
    own = (job,) if job else ()
    states = f"Gradwire states of {job}" if job else "Gradwire states"
    # a state is known by its description
    found = state_in(checkpoint, key, (*own, ABOUT), states, '{"gradwire": handle.stateful()}')
    return {path[-1]: kind for path, kind in found.items() if path[:-1] == own}
