"""What the ranks of a job must have alike, in words that they compare when they meet."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from zlib import crc32

import torch

import gradwire
from gradwire.controllers import Controller
from gradwire.ops import native
from gradwire.ops.backend import backend_for
from gradwire.ops.host import kind_of
from gradwire.ops.noise import uniform
from gradwire.plans import Plan, sizes_follow_from_shapes
from gradwire.runtime.meeting import Disagreement, Meeting, disagreement
from gradwire.slots import Layout, Slot
from gradwire.transports import Mesh

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
    ops = backend_for(matrix)
    ops.multiply([[thin]], [matrix[None]], [matrix[None]], subtract=False)
    ops.orthogonalize([matrix[None]])
    draw = torch.rand(64, generator=torch.Generator(device).manual_seed(0), device=device, dtype=torch.float64)
    numbers = torch.cat([matrix.flatten().double(), square.flatten().double(), thin.flatten().double(), draw])
    return f"{crc32(numbers.cpu().numpy().tobytes()):08x}"
