"""Meetings of ranks over the store before they rely on each other: all that must be equal on them is compared there,
where a rank that differs, or does not come, is an error with a name and not a collective that never ends."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from secrets import token_hex
from socket import gethostname
from time import monotonic
from zlib import crc32

import torch
from torch import Tensor

import gradwire
from gradwire.controllers import Controller
from gradwire.ops import native
from gradwire.ops.backend import backend_for, compiled_on
from gradwire.ops.host import computing_threads, kind_of
from gradwire.ops.noise import Seed, draws, uniform
from gradwire.plans import Plan, sizes_follow_from_shapes
from gradwire.runtime.failures import AbsentRanks, PeerFailed
from gradwire.runtime.job_options import JobOptions
from gradwire.slots import Layout, Slot
from gradwire.transports import Mesh
from gradwire.transports.gathering import PATIENCE_S, poll, ranks_named
from gradwire.transports.mesh import GIVEN_UP

SHOWN = 60
"""The characters of a value that an error shows."""
FACTORS = (8, 97), (20, 110), (8, 4100), (40, 120)
"""The shapes of matrices whose bases are compared: few rows, more, long ones, and more rows than kernels take, each by
a method of its own. The last one's rows are not independent, which takes noise on CPUs as well."""


Facts = Mapping[str, str]
"""What must be equal on all ranks, by the name that errors call it."""


class Disagreement(ValueError):
    """Ranks differ in `field`; all of them raise this."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class Meeting:
    """The meetings of one job, one after another, the same ones on all ranks:

    1. Every rank leaves its facts in the store, under the meeting's number.
    2. Rank 0 reads them, and leaves all of them, equal ones once, or the ranks that did not come in time.
    3. Every rank reads that. So all read the same, and all go on or all raise. Where rank 0 itself does not come, each
       of the others finds that out.
    """

    hosts: list[str]
    """The ranks' hosts, from the first meeting on."""
    training: str
    """What tells this training from others, from the first meeting on rank 0's on all ranks. It is not seeded: two
    trainings of one seed are two."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._count = 0
        self._patience_s = min(PATIENCE_S, mesh.timeout_s / 2)
        self.hosts = []
        self.training = token_hex(8)

    def compare(self, facts: Facts, *, patience_s: float | None = None) -> None:
        """Raises Disagreement on all ranks, naming the field and the ranks, where their facts differ, and AbsentRanks
        where some do not come. The field "error" has the reason why a rank cannot go on."""
        if found := disagreement(self.gather(facts, patience_s)):
            raise Disagreement(*found)

    def gather(self, facts: Facts, patience_s: float | None = None) -> list[Facts]:
        """The facts of each rank; "call" is the call for which they meet. Raises AbsentRanks, naming them, where some
        do not come, in PATIENCE_S or the given time, and PeerFailed where one of them has ended the job."""
        if self._mesh.ranks == 1:
            return [facts]
        # leave this rank's facts
        self._count, self._call = self._count + 1, facts.get("call", "the meeting")
        store = self._mesh.store
        rank = self._mesh.rank
        key = f"meeting/{self._count}"
        patience_s = self._patience_s if patience_s is None else patience_s
        store.set(f"{key}/{rank}", json.dumps([gethostname(), dict(facts)]))
        # rank 0 collects them, and answers all
        if rank == 0:
            store.set(f"{key}/everyone", self._collect(key, patience_s))
        # every rank reads the same answer
        answer = json.loads(self._answer(key, patience_s))
        if "absent" in answer:
            # who comes late meets the others in their next job
            store.set(GIVEN_UP, "")
            absent = answer["absent"]
            raise AbsentRanks(self._call, _absent(absent, self._call, answer["waited"]), absent)
        self.training = answer["training"]
        self.hosts = [answer["hosts"][host] for host, _ in answer["ranks"]]
        return [answer["facts"][facts] for _, facts in answer["ranks"]]

    def _collect(self, key: str, patience_s: float) -> str:
        """All ranks' facts, or the ranks that do not come, as JSON; on rank 0."""
        # wait for all ranks, one after another, until the time is over
        until = monotonic() + patience_s
        texts = [self._read(f"{key}/{rank}", until) for rank in range(self._mesh.ranks)]
        present = [text for text in texts if text is not None]
        if len(present) < len(texts):
            absent = [rank for rank, text in enumerate(texts) if text is None]
            return json.dumps({"absent": absent, "waited": patience_s})
        return json.dumps(_each_once(present) | {"training": self.training})

    def _answer(self, key: str, patience_s: float) -> str:
        """Rank 0's answer. Rank 0 may wait for the others as long as this rank waits for rank 0."""
        text = self._read(f"{key}/everyone", monotonic() + patience_s)
        # rank 0 has come, but waits for another rank: give it its whole time
        if text is None and self._mesh.store.get(f"{key}/0", 0) is not None:
            text = self._read(f"{key}/everyone", monotonic() + patience_s)
        return text or json.dumps({"absent": [0], "waited": patience_s})

    def _read(self, key: str, until: float) -> str | None:
        """A text of the store, once it is there; None where it is not in time."""
        # ask again and again: other threads of this rank use the store, too, and the job may end meanwhile
        for text in poll(self._mesh.store, key, until):
            if text is not None:
                return text
            if why := self._mesh.failure():
                raise PeerFailed(f"{self._call} ended", why)
        return None


def _each_once(texts: Sequence[str]) -> dict[str, object]:
    """All ranks' hosts and facts for JSON, each one that several ranks have once: all ranks read it."""
    hosts, facts = dict[str, int](), dict[str, int]()
    # by rank: the numbers of its host and of its facts
    ranks = [
        (hosts.setdefault(host, len(hosts)), facts.setdefault(json.dumps(own), len(facts)))
        for host, own in map(json.loads, texts)
    ]
    return {"hosts": list(hosts), "facts": [json.loads(own) for own in facts], "ranks": ranks}


def disagreement(facts: Sequence[Facts]) -> tuple[str, str] | None:
    """A message about the first field in which the ranks' facts differ, and the field; None where all are equal."""
    # a rank that cannot go on comes first: all others are as they should be
    if failed := {rank: own["error"] for rank, own in enumerate(facts) if "error" in own}:
        rank, error = next(iter(failed.items()))
        return (error if len(failed) == len(facts) else f"rank {rank} cannot go on: {error}"), "error"
    # then fields in the order in which ranks give them
    for field in dict.fromkeys(field for own in facts for field in own):
        # which ranks have which value
        values: dict[str, list[int]] = {}
        for rank, own in enumerate(facts):
            values.setdefault(own.get(field, "none"), []).append(rank)
        if len(values) > 1:
            parts = [f"{_short(value)} on {ranks_named(ranks)}" for value, ranks in values.items()]
            return f"the ranks differ in {field}: {', '.join(parts)}; give every rank the same", field
    return None


def _absent(ranks: Sequence[int], call: str, waited_s: float) -> str:
    return f"{ranks_named(ranks)} did not come to {call} within {waited_s:.0f} s; make the same calls on all ranks"


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else value[: SHOWN - 3] + "..."


class Agreement:
    """Comparisons of what the ranks of one job must agree on. Each raises ValueError on all ranks, naming what differs
    on which, or what one of them cannot do, and RuntimeError where one of them does not come."""

    replicas: int
    """Ranks that compress among each other."""

    def __init__(self, mesh: Mesh, slots: Sequence[Slot], device: torch.device, options: JobOptions) -> None:
        self._meeting = Meeting(mesh)
        self._slots = slots
        self._device = device
        self._timeout_s = mesh.timeout_s
        # long tables are compared by their digests; only where these differ is the entry looked for
        self._tables = {
            "parameters": {slot.name: f"{slot.shape} {slot.dtype} with strides {slot.strides}" for slot in slots},
            "what the model holds": {repr(name): value for name, value in options.values.items()},
        }
        own = {"Gradwire's version": gradwire.__version__, "device": kind_of(device), "seed": str(options.seed)}
        self._facts = {**own, **options.facts}
        self.replicas = mesh.replica.world

    def hosts(self) -> Sequence[str]:
        """The ranks' hosts, once they have met."""
        return self._meeting.hosts

    @property
    def training(self) -> str:
        """What tells this training from others, equal on all ranks once they have met."""
        return self._meeting.training

    def on_plan(
        self,
        make: Callable[[], Plan],
        controller: Controller | None,
        trained: Collection[str],
        call: str = "attach() or replan()",
    ) -> Plan:
        """The plan that `make` returns for the `trained` parameters, once all ranks have the same."""
        made: list[Plan] = []

        def facts() -> Facts:
            # raises where GRADWIRE_KERNELS names no library
            native.available()
            made.append(make())
            return {
                **self._facts,
                **{field: _digest(json.dumps(table)) for field, table in self._tables.items()},
                "requires_grad": _digest("\n".join(sorted(trained))),
                "controller": controller.describe() if controller else "none",
                "plan": f"{made[0].describe()} ({_digest(made[0].to_json())})",
                **_sent(made[0], self._slots, self.replicas),
            }

        # all ranks compare the same facts
        try:
            self.on(facts, call)
        except Disagreement as error:
            # one rank trains a parameter that another does not: a second meeting finds which
            if error.field == "requires_grad":
                self._meeting.compare({f"requires_grad of {s.name!r}": str(s.name in trained) for s in self._slots})
            if error.field in self._tables:  # which one?
                self._meeting.compare(self._tables[error.field])
            raise
        # a meeting of its own, as patient as collectives are where kernels have to be compiled for it
        if _local_arithmetic(made[0]):
            # bases of long matrices differ by the number of threads, whatever the checksum of small ones is
            threads = {"threads that compute, which OMP_NUM_THREADS sets": str(computing_threads(self._device))}
            computed = {"call": call, **threads, "arithmetic": _arithmetic(self._device)}
            self._meeting.compare(computed, patience_s=self._timeout_s if compiled_on(self._device) else None)
        return made[0]

    def on(self, facts: Callable[[], Facts], call: str) -> None:
        """Compares `facts` on all ranks, which make this call together; where `facts` raises ValueError on one of them,
        all raise it."""
        # an error of this rank is a fact as well, so that all ranks raise it
        try:
            own = facts()
        except ValueError as error:
            own = {"error": str(error)}
        self._meeting.compare({"call": call, **own})

    def gather(self, call: str, facts: Facts) -> list[Facts]:
        """The facts of all ranks, which make this call together."""
        # the ranks must have come for the same call
        gathered = self._meeting.gather({"call": call, **facts})
        if found := disagreement([{"call": own["call"]} for own in gathered]):
            raise Disagreement(*found)
        return gathered


def _digest(text: str) -> str:
    """A short text that differs where texts differ."""
    return sha256(text.encode()).hexdigest()[:12]


def _sent(plan: Plan, slots: Sequence[Slot], world: int) -> Facts:
    """The bytes that each compressor sends in one period; a user's own compressor may count wrong on one rank."""
    by_name, counts = {slot.name: slot for slot in slots}, Counter[str]()
    for group in plan.groups:
        compressor, layout = group.compressor, Layout(tuple(by_name[name] for name in group.slots))
        # sizes that depend on gradients are exchanged with them
        if sizes_follow_from_shapes(compressor):
            wires = (group.communicator.wire(compressor, layout, world, step) for step in range(compressor.period))
            counts[f"the bytes that {compressor} sends"] += sum(wire.wire_bytes for wire in wires)
    return {what: str(count) for what, count in counts.items()}


def _local_arithmetic(plan: Plan) -> bool:
    """Whether every rank computes something by itself that must be equal on all."""
    return any(group.compressor.local_arithmetic for group in plan.groups)


def _arithmetic(device: torch.device) -> str:
    """A checksum of operations whose results must be equal on all ranks. Autocast is off, as on the worker, whatever it
    is on the thread that trains."""
    with torch.autocast(kind_of(device), enabled=False):
        return _checksum(device)


def _checksum(device: torch.device) -> str:
    """A checksum of matrix products, of bases, and of random draws, all in float32 or float64."""
    # the same numbers everywhere, so that only the arithmetic can differ
    generator = torch.Generator().manual_seed(0)
    factors = [uniform(shape, generator).to(device) for shape in FACTORS]
    matrix, most = factors[0], factors[-1]
    most[1] = most[0]
    # products, bases and draws, as algorithms make them
    square, thin = matrix @ matrix.T, list[Tensor]()
    ops = backend_for(matrix)
    for factor in (matrix, most):
        thin.append(factor.new_empty(1, factor.shape[1], factor.shape[1]))
        ops.multiply([[thin[-1]]], [factor[None]], [factor[None]], subtract=False)
    for factor in factors:
        ops.orthogonalize([factor[None]])
    draw = draws(64, Seed(0), device)
    # all of them to one number
    numbers = torch.cat([each.flatten().double() for each in (*factors, square, *thin, draw)])
    return f"{crc32(numbers.cpu().numpy().tobytes()):08x}"
