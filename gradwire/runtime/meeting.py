"""Ranks meet over the store before they rely on each other: what must be equal on all of them is compared there,
where a rank that differs, or does not come, is an error with a name and not a collective that never ends."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from socket import gethostname
from time import monotonic
from zlib import crc32

import torch

import gradwire
from gradwire.controllers import Controller
from gradwire.ops import native
from gradwire.ops.host import kind_of
from gradwire.ops.kernels import orthogonalize
from gradwire.ops.matrices import product
from gradwire.ops.noise import uniform
from gradwire.plans import Plan, sizes_follow_from_shapes
from gradwire.runtime.failures import Interrupted, ranks_named
from gradwire.slots import Layout, Slot
from gradwire.transports import Mesh

PATIENCE_S = 60.0
"""How long ranks wait for each other at most. They come from DDP's constructor or a step, which are in step already."""
SLICE_S = 1.0
"""How long one question to the store waits: other threads of this rank have questions to it as well."""
SHOWN = 60


class Disagreement(ValueError):
    """Ranks differ in `field`; all of them raise this."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class AbsentRanks(RuntimeError):
    """Ranks did not come to a meeting; all others raise this, as for any rank that is lost."""


class Meeting:
    """The meetings of one job, one after another, the same ones on all ranks:

    1. Every rank leaves its words in the store, under the meeting's number.
    2. Rank 0 reads them, and leaves all of them, or who did not come in time.
    3. Every rank reads that. So all hear the same, and all go on or all raise. Where rank 0 itself does not come, each
       of the others finds that out.

    `hosts` are the ranks' hosts, from the first meeting on.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh, self._count, self._patience_s = mesh, 0, min(PATIENCE_S, mesh.timeout_s / 2)
        self.hosts: list[str] = []

    def compare(self, said: Mapping[str, str]) -> None:
        """Raises Disagreement on all ranks, naming the field and the ranks, where what they say differs, and
        AbsentRanks where some do not come.

        A field "error" says why a rank cannot go on."""
        if found := disagreement(self.gather(said)):
            raise Disagreement(*found)

    def gather(self, said: Mapping[str, str]) -> list[Mapping[str, str]]:
        """The words of each rank; their "call" is what they meet for. Raises AbsentRanks, naming them, where some do
        not come, and Interrupted where one of them has ended the job."""
        if self._mesh.ranks == 1:
            return [said]
        self._count, self._call = self._count + 1, said.get("call", "the meeting")
        store, rank, key = self._mesh.store, self._mesh.rank, f"meeting/{self._count}"
        store.set(f"{key}/{rank}", json.dumps([gethostname(), dict(said)]))
        if rank == 0:
            store.set(f"{key}/everyone", self._collect(key))
        heard = json.loads(self._answer(key))
        if isinstance(heard, dict):
            raise AbsentRanks(_absent(heard["absent"], self._call, heard["waited"]))
        self.hosts = [host for host, _ in heard]
        return [words for _, words in heard]

    def _collect(self, key: str) -> str:
        """What rank 0 hears of all, or who does not come, as JSON."""
        until = monotonic() + self._patience_s
        texts = [self._word(f"{key}/{rank}", until) for rank in range(self._mesh.ranks)]
        present = [text for text in texts if text is not None]
        if len(present) < len(texts):
            absent = [rank for rank, text in enumerate(texts) if text is None]
            return json.dumps({"absent": absent, "waited": self._patience_s})
        return f"[{','.join(present)}]"

    def _answer(self, key: str) -> str:
        """The answer that rank 0 has left for all; it may wait for the others as long as this rank waits for it."""
        text = self._word(f"{key}/everyone", monotonic() + self._patience_s)
        if text is None and self._mesh.store.get(f"{key}/0", 0) is not None:
            text = self._word(f"{key}/everyone", monotonic() + self._patience_s)
        return text or json.dumps({"absent": [0], "waited": self._patience_s})

    def _word(self, key: str, until: float) -> str | None:
        """A word, once it is there; None where it is not in time."""
        while (text := self._mesh.store.get(key, max(0.01, min(SLICE_S, until - monotonic())))) is None:
            if why := self._mesh.failure():
                raise Interrupted(f"{self._call} ended", why)
            if monotonic() >= until:
                return None
        return text


def disagreement(said: Sequence[Mapping[str, str]]) -> tuple[str, str] | None:
    """In words what differs between what ranks said, by rank, and the field; None where all is equal."""
    if failed := {rank: words["error"] for rank, words in enumerate(said) if "error" in words}:
        rank, error = next(iter(failed.items()))
        return (error if len(failed) == len(said) else f"rank {rank} cannot go on: {error}"), "error"
    for field in dict.fromkeys(field for words in said for field in words):
        values: dict[str, list[int]] = {}
        for rank, words in enumerate(said):
            values.setdefault(words.get(field, "none"), []).append(rank)
        if len(values) > 1:
            parts = [f"{_short(value)} on {ranks_named(ranks)}" for value, ranks in values.items()]
            return f"the ranks differ in {field}: {', '.join(parts)}; give every rank the same", field
    return None


def _absent(ranks: Sequence[int], call: str, waited_s: float) -> str:
    return f"{ranks_named(ranks)} did not come to {call} within {waited_s:.0f} s; make the same calls on all ranks"


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else value[: SHOWN - 3] + "..."


Words = Mapping[str, str]


class Agreement:
    """The meetings of one job's ranks. Each raises ValueError on all ranks, naming what differs on which, or what one
    of them cannot do, and RuntimeError where one of them does not come."""

    def __init__(
        self, mesh: Mesh, slots: Sequence[Slot], device: torch.device, words: Words, values: Words | None = None
    ) -> None:
        self._meeting, self._slots, self._device = Meeting(mesh), slots, device
        self._tables = {
            "parameters": {slot.name: f"{slot.shape} {slot.dtype} with strides {slot.strides}" for slot in slots},
            "what the model holds": {repr(name): value for name, value in (values or {}).items()},
        }
        self._words = {"Gradwire's version": gradwire.__version__, "device": kind_of(device), **words}
        self._averaged = mesh.replica.world

    def hosts(self) -> Sequence[str]:
        """The names of the ranks' hosts, once they have met."""
        return self._meeting.hosts

    def on_plan(
        self,
        make: Callable[[], Plan],
        controller: Controller | None,
        trained: Collection[str],
        call: str = "attach() or replan()",
    ) -> Plan:
        """The plan that `make` returns for the `trained` parameters, with which the ranks begin, or go on."""
        made: list[Plan] = []

        def words() -> Words:
            native.available()  # raises where GRADWIRE_KERNELS names no library
            made.append(make())
            return {
                **self._words,
                **{field: _digest(json.dumps(table)) for field, table in self._tables.items()},
                "requires_grad": _digest("\n".join(sorted(trained))),
                "controller": controller.describe() if controller else "none",
                "plan": f"{made[0].describe()} ({_digest(made[0].to_json())})",
                **_sent(made[0], self._slots, self._averaged),
                **({"arithmetic": _arithmetic(self._device)} if _local_arithmetic(made[0]) else {}),
            }

        try:
            self.on(words, call)
        except Disagreement as error:
            if error.field == "requires_grad":
                self._meeting.compare({f"requires_grad of {s.name!r}": str(s.name in trained) for s in self._slots})
            if error.field in self._tables:  # which one?
                self._meeting.compare(self._tables[error.field])
            raise
        return made[0]

    def on(self, words: Callable[[], Words], call: str) -> None:
        """`words` are the same on all ranks, all of which make this call; it raises ValueError where this rank cannot
        go on."""
        try:
            said = words()
        except ValueError as error:
            said = {"error": str(error)}
        self._meeting.compare({"call": call, **said})

    def tell(self, call: str, words: Words) -> list[Words]:
        """What all ranks say, by rank, all of which make this call."""
        told = self._meeting.gather({"call": call, **words})
        if found := disagreement([{"call": said["call"]} for said in told]):
            raise Disagreement(*found)
        return told


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]


def _sent(plan: Plan, slots: Sequence[Slot], world: int) -> Words:
    """The bytes that each compressor sends in as many steps as differ: a user's own may count wrong on one rank."""
    by_name, counts = {slot.name: slot for slot in slots}, Counter[str]()
    for group in plan.groups:
        compressor, layout = group.compressor, Layout(tuple(by_name[name] for name in group.slots))
        if sizes_follow_from_shapes(compressor):
            wires = (group.communicator.wire(compressor, layout, world, step) for step in range(compressor.period))
            counts[f"the bytes that {compressor} sends"] += sum(wire.wire_bytes for wire in wires)
    return {what: str(count) for what, count in counts.items()}


def _local_arithmetic(plan: Plan) -> bool:
    return any(group.compressor.local_arithmetic for group in plan.groups)


def _arithmetic(device: torch.device) -> str:
    """A checksum of operations whose results must be equal on all ranks. Autocast is off: the thread that trains may
    have it on, but not the worker that takes the steps."""
    with torch.autocast(kind_of(device), enabled=False):
        return _checksum(device)


def _checksum(device: torch.device) -> str:
    matrix = uniform((8, 97), torch.Generator().manual_seed(0)).to(device)
    square, thin = matrix @ matrix.T, matrix.new_empty(1, 97, 97)
    product([matrix[None]], [matrix[None]], [[thin]])
    orthogonalize([matrix[None]])
    draw = torch.rand(64, generator=torch.Generator(device).manual_seed(0), device=device, dtype=torch.float64)
    numbers = torch.cat([matrix.flatten().double(), square.flatten().double(), thin.flatten().double(), draw])
    return f"{crc32(numbers.cpu().numpy().tobytes()):08x}"
