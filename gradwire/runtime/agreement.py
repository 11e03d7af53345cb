"""What the ranks of a job must agree on: plans, options, versions, and results of arithmetic that each does alone."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256
from zlib import crc32

import torch
from torch import Tensor

from gradwire.compressors import Compressor
from gradwire.ops import native
from gradwire.ops.backend import backend_for, compiled_on, in_use
from gradwire.ops.host import computing_threads, kind_of, processor_of
from gradwire.ops.noise import Seed, draws, uniform
from gradwire.plans import Group, Plan, sizes_follow_from_shapes
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.meeting import Disagreement, Facts, Meeting, disagreement
from gradwire.slots import Layout, Slot
from gradwire.sources import version
from gradwire.transports import Mesh
from gradwire.transports.members import Members

FACTORS = (8, 97), (20, 110), (8, 4100), (40, 120)
"""The shapes of matrices whose bases are compared: few rows, more, long ones, and more rows than kernels take, each by
a method of its own. The last one's rows are not independent, which takes noise on CPUs as well."""
DRAWS, PRODUCTS = 1, 2


class Agreement:
    """Comparisons of what the ranks of one job must agree on. Each raises ValueError on all ranks, naming what differs
    on which, or what one of them cannot do, and RuntimeError where one of them does not come."""

    replicas: int
    """Ranks that compress among each other."""
    patient = False
    """Ranks wait for each other as long as in a collective, for they may be apart by a round of local steps."""

    def __init__(self, mesh: Mesh, slots: Sequence[Slot], device: torch.device, options: JobOptions) -> None:
        self._meeting = Meeting(mesh)
        self._slots = slots
        self._device = device
        self._timeout_s = mesh.timeout_s
        self._elastic, self._controller = options.elastic, options.controller
        # long tables are compared by their digests; only where these differ is the entry looked for
        self._tables = {
            "parameters": {slot.name: f"{slot.shape} {slot.dtype} with strides {slot.strides}" for slot in slots},
            "what the model holds": {repr(name): value for name, value in options.values.items()},
        }
        own = {"Gradwire's version": version(), "device": kind_of(device), "seed": str(options.seed)}
        self._facts = {**own, **options.facts}
        # of results that each rank computes alone, what has been compared
        self._compared = 0
        self.replicas = mesh.replica.world

    def hosts(self) -> Sequence[str]:
        """The ranks' hosts, once they have met."""
        return self._meeting.hosts

    @property
    def training(self) -> str:
        """A name of this training, equal on all ranks once they have met."""
        return self._meeting.training

    def on_plan(self, make: Callable[[], tuple[Plan, Plan]], trained: Collection[str], call: str) -> Plan:
        """The plan with which the controller begins, once all ranks have the same. `make` returns that one and the
        user's, both for the `trained` parameters. Raises ValueError where ranks differ; on ranks that can go on
        without newcomers that differ, RuntimeError."""
        controller, made = self._controller, list[Plan]()

        def facts() -> Facts:
            # raises where GRADWIRE_KERNELS names no library
            native.available()
            made.extend(make())
            return {
                **self._facts,
                **{field: _digest(json.dumps(table)) for field, table in self._tables.items()},
                "requires_grad": _digest("\n".join(sorted(trained))),
                "controller": controller.describe() if controller else "none",
                "plan": f"{made[1].describe()} ({_digest(''.join(plan.to_json() for plan in made))})",
                **_sent(_groups(made), self._slots, self.replicas),
            }

        try:
            self._on_entries(facts, trained, call)
            # what a controller sends later counts from the beginning
            later = controller.may_send() if controller else ()
            self.on_arithmetic([*(group.compressor for group in _groups(made)), *later], call)
        except Disagreement as error:
            # what this rank cannot make is its own mistake
            if self._elastic and Members.beside_newcomers and made:
                raise RuntimeError(f"the ranks differ since one joined: {error}") from error
            raise
        return made[0]

    def _on_entries(self, facts: Callable[[], Facts], trained: Collection[str], call: str) -> None:
        """`on`; where digests differ, a second meeting finds the entry, and the error names it."""
        try:
            self.on(facts, call)
        except Disagreement as error:
            # one rank trains a parameter that another does not
            if error.field == "requires_grad":
                self._meeting.compare({f"requires_grad of {s.name!r}": str(s.name in trained) for s in self._slots})
            if error.field in self._tables:
                self._meeting.compare(self._tables[error.field])
            raise

    def on_arithmetic(self, compressors: Iterable[Compressor], call: str) -> None:
        """Compares what each rank computes alone for these compressors; all ranks have the same ones."""
        alone = _alone(compressors)
        if not alone:
            return
        computed = {"call": call}
        # bases of long matrices differ by the number of threads, whatever the checksum of small ones is
        if alone == PRODUCTS:
            computed["threads that compute, which OMP_NUM_THREADS sets"] = str(computing_threads(self._device))
        computed["arithmetic"] = _arithmetic(self._device, alone)
        # a meeting of its own, as patient as collectives are where kernels have to be compiled for it
        try:
            self._meeting.compare(computed, patience_s=self._timeout_s if compiled_on(self._device) else None)
        except Disagreement as error:
            # what computes otherwise, where that is known, says more than a checksum
            if error.field == "arithmetic":
                own = {"kernels": in_use(self._device), "torch's version": torch.__version__}
                self._meeting.compare({**own, "processor": processor_of(self._device)})
            raise
        self._compared = max(self._compared, alone)

    def check(self, plan: Plan) -> None:
        """Raises ValueError where the plan needs equal arithmetic on all ranks, and they have not compared it."""
        for group in plan.groups:
            if _alone([group.compressor]) > self._compared:
                raise ValueError(
                    f"the ranks did not compare their arithmetic for {group.compressor}, which the controller chose; "
                    "have its may_send() return that"
                )

    def on(self, facts: Callable[[], Facts], call: str) -> None:
        """Compares `facts` on all ranks, which make this call together; where `facts` raises ValueError on one of them,
        all raise it."""
        # an error of this rank is a fact as well, so that all ranks raise it
        try:
            own = facts()
        except ValueError as error:
            own = {"error": str(error)}
        self._meeting.compare({"call": call, **own}, patience_s=self._timeout_s if self.patient else None)

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


def _groups(plans: Iterable[Plan]) -> Collection[Group]:
    """All groups of these plans, each once."""
    return dict.fromkeys(group for plan in plans for group in plan.groups)


def _sent(groups: Iterable[Group], slots: Sequence[Slot], world: int) -> Facts:
    """The bytes that each compressor sends in one period; a user's own compressor may count wrong on one rank."""
    by_name, counts = {slot.name: slot for slot in slots}, Counter[str]()
    for group in groups:
        compressor, layout = group.compressor, Layout(tuple(by_name[name] for name in group.slots))
        # sizes that depend on gradients are exchanged with them
        if sizes_follow_from_shapes(compressor):
            wires = (group.communicator.wire(compressor, layout, world, step) for step in range(compressor.period))
            counts[f"the bytes that {compressor} sends"] += sum(wire.wire_bytes for wire in wires)
    return {what: str(count) for what, count in counts.items()}


def _alone(compressors: Iterable[Compressor]) -> int:
    """Whether each rank computes something by itself that must be equal on all: 0, DRAWS, or PRODUCTS as well."""
    return max((PRODUCTS if each.multiplies else DRAWS for each in compressors if each.local_arithmetic), default=0)


def _arithmetic(device: torch.device, alone: int) -> str:
    """A checksum of operations whose results must be equal on all ranks: random draws and, for PRODUCTS, matrix
    products and bases. Autocast is off, as on the worker, whatever it is on the thread that trains."""
    with torch.autocast(kind_of(device), enabled=False):
        numbers = [draws(64, Seed(0), device), *(_products(device) if alone == PRODUCTS else [])]
        whole = torch.cat([each.flatten().double() for each in numbers])
        return f"{crc32(whole.cpu().numpy().tobytes()):08x}"


def _products(device: torch.device) -> list[Tensor]:
    """Matrix products and bases, all in float32, of the same numbers everywhere, so that only the arithmetic can
    differ."""
    generator = torch.Generator().manual_seed(0)
    factors = [uniform(shape, generator).to(device) for shape in FACTORS]
    matrix, most = factors[0], factors[-1]
    most[1] = most[0]
    # as algorithms make them
    square, thin = matrix @ matrix.T, list[Tensor]()
    ops = backend_for(matrix)
    for factor in (matrix, most):
        thin.append(factor.new_empty(1, factor.shape[1], factor.shape[1]))
        ops.multiply([[thin[-1]]], [factor[None]], [factor[None]], subtract=False)
    for factor in factors:
        ops.orthogonalize([factor[None]])
    return [*factors, square, *thin]
