"""Local steps for torch.distributed.checkpoint, which saves everything once and loads it on any mesh.

"memory"     memories, a row of each replica: see `gradwire.frontends.checkpoints.distributed_checkpoint`
"shared"     anchors, the outer optimizer's state, and the means of fragments under way: equal on all replicas
"replica r"  its parameters, now and as they were sent, and its inner optimizer's state, under a name of its own

Other numbers of replicas go on by the rule of `gradwire.resharding`.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from gradwire.checkpoint import key_of, split
from gradwire.frontends.checkpoints.distributed_checkpoint import DistributedState
from gradwire.frontends.checkpoints.saved_tensors import (
    Saved,
    check_known,
    said_by,
    state_in,
)
from gradwire.frontends.local_steps.round_state import check_shapes
from gradwire.frontends.local_steps.rounds import Rounds
from gradwire.frontends.model_replica import ModelReplica
from gradwire.frontends.owners import held_by
from gradwire.frontends.values import is_sharded, local
from gradwire.resharding import predecessors
from gradwire.slots import real, real_shape
from gradwire.text_tensors import letters, text_of

MEMORY, SHARED, REPLICA = "memory", "shared", "replica "
ANCHOR = key_of("", "anchor")
ROUND = "round"
"""The key by which the state is found in a checkpoint; its number of steps and the fragments under way."""

Tensors = dict[str, Tensor]
"""By "<parameter>//<name>"; and texts."""


class DistributedRounds:
    """The state of local steps, a `Stateful` for `dcp.save({"local_steps": ...})`, and with a checkpoint's tensors as
    `saved` for `dcp.load`. Raises ValueError for another model's."""

    def __init__(self, rounds: Rounds, replica: ModelReplica, saved: Mapping[str, Saved]) -> None:
        self._rounds = rounds
        self._replica = replica
        self._saved = saved
        if rounds.schedule.eager:
            raise ValueError("with eager=True every replica has anchors of its own; save state_dict() on every rank")
        # parameters with their places, of which the rounds share some; an optimizer may keep state of the others
        self._placed, names = replica.placed(), {name for each in rounds.fragments for name in each.parameters}
        shared = {name: placed for name, placed in self._placed.items() if name in names}
        self._local = {name: tensor for name, tensor in replica.local.items() if name in names}
        self._memory = DistributedState(rounds.runtime, shared, saved.get(MEMORY, {}))
        # the old replica as which this one goes on
        replicas = sum(folder.startswith(REPLICA) for folder in saved) or rounds.runtime.mesh.replica.world
        self._own = self._folder_among(replicas)
        if saved:
            # by parameter, the shape of its anchor
            sizes = {split(key)[0]: tuple(kind.size) for key, kind in saved[SHARED].items() if key.endswith(ANCHOR)}
            check_shapes(sizes, {name: one.shape for name, one in shared.items()})

    def state_dict(self) -> dict[str, Tensors]:
        """The tensors to save; or, to load, zeros like the saved ones."""
        if self._saved:
            folders = {
                folder: {key: self._empty(key, kind) for key, kind in self._saved[folder].items()}
                for folder in (SHARED, self._own)
            }
            return {MEMORY: self._memory.state_dict(), **folders}
        progress, inner = self._rounds.progress(), self._rounds.inner
        # equal on all replicas: kept once
        under_way = progress["under way"]
        facts = {key: progress[key] for key in ("step", "outer class")}
        facts["under way"] = [[each["fragment"], each["sent at"]] for each in under_way]
        shared = {ROUND: letters(json.dumps(facts))} | self._each("anchor", progress["anchors"])
        shared |= self._optimizer("outer", progress["outer"], self._held(self._rounds.outer))
        # this replica's own: its parameters, and what of them was sent
        own = self._each("parameter", self._local)
        for each in under_way:
            shared |= self._each("mean", each["means"])
            own |= self._each("sent", each["sent"])
        own |= self._optimizer("inner", inner.state_dict(), self._held(inner))
        return {MEMORY: self._memory.state_dict(), SHARED: shared, self._own: own}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensors]) -> None:
        """Takes over a state that was loaded into `state_dict`. Raises ValueError without a checkpoint's tensors, and
        where one rank cannot go on from it: then on all of them, and nothing has changed."""
        check_known(self._saved, "optimizer")
        rounds = self._rounds
        shared = state[SHARED]
        own = state[self._own]
        progress, inner = dict[str, Any](), dict[str, Any]()

        def more_facts() -> dict[str, str]:
            progress.update(self._progress(shared, own))
            inner.update(self._optimizer_state("inner", own, rounds.inner))
            return rounds.facts(progress, inner)

        # all ranks meet, check all of it, and load memories; then rounds, and this replica's parameters
        rounds.runtime.load_state_dict(self._memory.part(state[MEMORY]), more_facts)
        rounds.resume(progress, inner)
        for name, parameter in self._of("parameter", own).items():
            self._local[name].copy_(parameter)
        # what is saved from here on is the present state, of the replicas that there are now
        self._memory.loaded()
        self._saved, self._own = None, self._folder_among(rounds.runtime.mesh.replica.world)

    def _folder_among(self, replicas: int) -> str:
        """The folder of this replica's own state, where so many have saved theirs."""
        replica = self._rounds.runtime.mesh.replica
        return f"{REPLICA}{predecessors(replica.rank, replica.world, replicas).own}"

    def _progress(self, shared: Tensors, own: Tensors) -> dict[str, Any]:
        facts, anchors = said_by(shared[ROUND]), self._of("anchor", shared)
        outer = self._optimizer_state("outer", shared, self._rounds.outer)
        progress = {"step": facts["step"], "anchors": anchors, "outer": outer, "outer class": facts.get("outer class")}
        means = self._of("mean", shared)
        sent = self._of("sent", own)
        fragments = self._rounds.fragments
        # the parts under way must be those that were saved
        parts = [
            fragments[index].parameters.keys() if index < len(fragments) else () for index, _ in facts["under way"]
        ]
        if means.keys() != {name for part in parts for name in part}:
            raise ValueError(
                "the state has a fragment under way that does not exist here; make LocalSteps with the same fragments "
                "and the same layers frozen, thaw the others, then load"
            )
        # this rank's shard of each
        under_way = [
            {"fragment": index, "sent at": at, "means": _among(part, means), "sent": _among(part, sent)}
            for (index, at), part in zip(facts["under way"], parts, strict=True)
        ]
        return progress | {"under way": under_way}

    # Tensors by parameter

    def _empty(self, key: str, kind: TensorStorageMetadata) -> Tensor:
        dtype, placed = kind.properties.dtype, self._placed.get(split(key)[0])
        if placed and tuple(kind.size) == placed.shape:
            return placed.once(torch.zeros(placed.part, dtype=dtype, device=placed.device))
        return torch.zeros(kind.size, dtype=dtype, device="cpu")

    def _each(self, kind: str, tensors: Mapping[str, Tensor]) -> Tensors:
        return {key_of(name, kind): self._placed[name].once(tensor) for name, tensor in tensors.items()}

    def _of(self, kind: str, saved: Tensors) -> dict[str, Tensor]:
        keys = ((name, key_of(name, kind)) for name in self._placed)
        return {name: self._placed[name].own(cast(DTensor, saved[key])) for name, key in keys if key in saved}

    # Optimizers

    def _held(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The inner or outer optimizer's parameters by name, in its order."""
        names = self._replica.trained.names | {id(anchor): name for name, anchor in self._rounds.anchors.items()}
        return {names[id(parameter)]: parameter for parameter in held_by(optimizer)}

    def _optimizer(self, kind: str, state: Mapping[str, Any], held: Iterable[str]) -> Tensors:
        """An optimizer's state: its tensors, and a text of all else."""
        names, tensors = list(held), Tensors()
        rest: dict[str, dict[str, Any]] = {}
        # tensors under the parameter's name, all else as one text
        for index, kept in state["state"].items():
            for key, value in kept.items():
                if isinstance(value, Tensor):
                    tensors[key_of(names[index], f"{kind}/{key}")] = self._part(names[index], value)
                else:
                    rest.setdefault(names[index], {})[key] = value
        text = json.dumps({"groups": state["param_groups"], "state": rest}, default=_number)
        return tensors | {kind: letters(text)}

    def _part(self, name: str, value: Tensor) -> Tensor:
        # where a parameter has no place, as an empty one, this is plain
        placed, shape = self._placed.get(name), real_shape(value)
        if placed and shape in (placed.shape, self._replica.local[name].shape):
            return placed.once(real(local(value)))
        return _refuse(value) if is_sharded(value) else value

    def _optimizer_state(self, kind: str, saved: Tensors, optimizer: Optimizer) -> dict[str, Any]:
        """The inverse of `_optimizer`."""
        facts = json.loads(text_of(saved[kind]))
        state: dict[int, dict[str, Any]] = {}
        # tensors of this parameter, like this rank's own
        for index, (name, parameter) in enumerate(self._held(optimizer).items()):
            prefix = key_of(name, f"{kind}/")
            kept = {
                k.removeprefix(prefix): self._like(parameter, name, t) for k, t in saved.items() if k.startswith(prefix)
            }
            if kept := facts["state"].get(name, {}) | kept:
                state[index] = kept
        # JSON has made lists of tuples, such as Adam's betas
        groups = [{k: tuple(v) if isinstance(v, list) else v for k, v in group.items()} for group in facts["groups"]]
        # what is a tensor here, such as a learning rate, stays one: sums with a number round otherwise
        for group, here in zip(groups, optimizer.param_groups, strict=False):
            group |= {k: torch.full_like(v, group[k]) for k, v in here.items() if isinstance(v, Tensor) and k in group}
        return {"state": state, "param_groups": groups}

    def _like(self, parameter: Tensor, name: str, saved: Tensor) -> Tensor:
        if not is_sharded(saved):
            return saved
        dtype = saved.dtype.to_complex() if parameter.is_complex() else saved.dtype
        # whole in the checkpoint; here this rank's shard of it
        own, made = self._placed[name].own(saved), torch.empty_like(parameter.detach(), dtype=dtype)
        real(local(made)).copy_(own)
        return made


def _among(names: Collection[str], tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name in names}


def _number(value: Any) -> float:
    """A tensor of one element, such as a learning rate, or a number of NumPy's, as a plain number."""
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError):
        _refuse(value)


def _refuse(value: object) -> NoReturn:
    raise ValueError(
        f"an optimizer keeps a {type(value).__name__} that is neither as large as a parameter nor a plain number, text "
        "or tensor; save state_dict() on every rank instead"
    )


def rounds_in(checkpoint: str | Path | StorageReader | None, key: str | None) -> dict[str, Saved]:
    """The tensors of a checkpoint's local steps, of several those saved under `key`, by folder; none without a
    checkpoint. Raises ValueError where it has none, or several and no key that fits."""
    saved = '{"local_steps": optimizer.stateful()}'
    folders: dict[str, dict[str, TensorStorageMetadata]] = {}
    for (folder, name), kind in state_in(checkpoint, key, (SHARED, ROUND), "states of local steps", saved).items():
        folders.setdefault(folder, {})[name] = kind
    return dict(folders)
