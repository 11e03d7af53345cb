"""A user's options, with which every front end makes its plan, its mesh and its runtime."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from numbers import Real
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gradwire.communicators import Communicator
from gradwire.compressors import FP32, Compressor
from gradwire.controllers import Controller, check_numbers
from gradwire.frontends.hooks.sparse_gradients import check_sparse, row_way
from gradwire.frontends.options.automatic import check_ignored
from gradwire.frontends.options.given_rules import GivenRule, Planner, facts_of, rules_of, warn_of
from gradwire.frontends.options.keywords import Dense
from gradwire.frontends.options.parameters import device_of, slots_of
from gradwire.frontends.options.scaled import scale_from
from gradwire.frontends.options.weighted import Weight, check_weighted, weight_function
from gradwire.frontends.updates import check_means, check_unsharded
from gradwire.groups import Grouping
from gradwire.memories import Memory
from gradwire.notation import read, way_of
from gradwire.ops.host import kind_of
from gradwire.options import check_type, one_line
from gradwire.plans import NATIVE, SIZES, Group, Plan
from gradwire.rules import Rule
from gradwire.runtime.job_options import NO_NATIVE, JobOptions
from gradwire.runtime.runtime import Runtime
from gradwire.slots import Slot
from gradwire.split_groups import cut_alike
from gradwire.transports import Mesh, Transport
from gradwire.tuner import Auto, profiler_for
from gradwire.unknown import unknown

MEANT = {
    "compression": ["compressor"],
    "group": ["process_group", "transport"],
    "named_parameters": ["model"],
    "process_group": ["transport"],
}
"""By the name of an argument of Horovod's or torch's: the options here that are for the same."""
WORDS = {"auto": "leave the compressor out, as in gw.attach(ddp)", "dense": "pass gw.FP32()"}
"""By a word that is no compressor on the command line either: what to do in Python."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A user's `PlanOptions` with their defaults."""

    compressor: Compressor | Plan | None = None
    memory: Memory | None = None
    communicator: Communicator | None = None
    dense: Dense | None = None
    groups: Grouping | None = None
    rules: Sequence[GivenRule] = ()
    transport: Transport | Mesh | None = None
    seed: int = 0
    weight: Weight | None = None
    finds_plans: ClassVar[bool] = False
    """There may be an automatic plan."""

    @classmethod
    def of(cls, compressor: Compressor | Plan | str | None, also: Sequence[str] = (), **options: Any) -> Self:
        """The choices that a user's arguments make. A text is read by `gradwire.notation`. Raises TypeError for an
        unknown option (`also` names the front end's own), ValueError for a text that is none or repeats an option."""
        # by name, so that a wrong one is refused before anything is made
        if wrong := options.keys() - (names := [field.name for field in fields(cls)][1:]):
            known = [*names, *also, "model", "compressor"]
            raise TypeError(str(unknown("option named", min(wrong), known, MEANT.get(min(wrong), ()))))
        if not isinstance(compressor, str):
            return cls(compressor=compressor, **options)
        if instead := WORDS.get(compressor.lower()):
            raise ValueError(f"{compressor!r} is a word of the command line; {instead}")
        # a text's parts take the place of options
        parts, groups = read(compressor)
        named = {name: part for name, part in {**parts._asdict(), "groups": groups}.items() if part is not None}
        if twice := [name for name in named if options.get(name) is not None]:
            raise ValueError(f"{compressor!r} says {named[twice[0]]}, and {twice[0]}= something else; keep one of them")
        if controller := named.keys() - names - {"compressor"}:
            kind = type(named[min(controller)]).__name__
            raise ValueError(f"controllers are for exchanges of every step; leave {kind} out of {compressor!r}")
        return cls(**options | named)

    def check(self) -> None:
        """Raises ValueError, naming the call that works, for values of the wrong type, and for options that contradict
        each other."""
        # each option by itself
        check_type("compressor", self.compressor, (Compressor, Plan), "gw.TopK(0.01)")
        check_type("memory", self.memory, (Memory,), "gw.Residual()")
        check_type("communicator", self.communicator, (Communicator,), "gw.AllGather()")
        check_type("groups", self.groups, (Grouping,), "gw.groups.of(megabytes=25)")
        check_type("transport", self.transport, (Transport, Mesh), "gw.ProcessGroup.own()")
        check_type("seed", self.seed, (int,), "0", optional=False)
        if not callable(self.weight):
            check_type("weight", self.weight, (float, Real, Tensor), "lambda: len(batch)")
        # options that exclude each other
        if self.dense is not None and not callable(self.dense):
            raise ValueError(f"dense={one_line(self.dense)} is no function; pass e.g. dense=lambda name, p: True")
        if self.fixed_plan and (self.memory or self.communicator or self.dense or self.groups or self.rules):
            raise ValueError("a Plan says memory, communicator, groups, rules and what is dense; pass it alone")
        if self.rules and not self.compressor and (self.memory or self.communicator):
            raise ValueError("memory= and communicator= need a compressor; or add rule ('*', 'topk:0.01+residual')")
        if not self.finds_plans and (open_one := next((rule for rule in self.by_layer if not rule.fixed), None)):
            raise ValueError(f"there is no automatic plan here; name one compressor for {open_one.pattern!r}")

    @property
    def fixed_plan(self) -> Plan | None:
        """The plan that the user gave in place of a compressor."""
        return self.compressor if isinstance(self.compressor, Plan) else None

    @cached_property
    def by_layer(self) -> tuple[Rule, ...]:
        """The user's rules, the last of which has the compressor for what none of them matches."""
        if not self.rules:
            return ()
        parts = self.memory, self.communicator
        return rules_of(self.rules, way_of(self.compressor, *parts) if self.compressor else None)  # pyright: ignore[reportArgumentType]

    def plan(self, parameters: Mapping[str, nn.Parameter], ranks: Callable[[], int]) -> Callable[[list[Slot]], Plan]:
        """A function that makes the plan of some slots, given in the order in which they become ready, among so many
        ranks."""
        if plan := self.fixed_plan:
            return lambda slots: plan
        # dense slots by name, sizes of groups by device
        is_dense = self.dense
        dense = None if is_dense is None else lambda slot: is_dense(slot.name, parameters[slot.name])
        kinds = {kind_of(parameter.device) for parameter in parameters.values()}
        planner = Planner(dense, self.groups, SIZES["cuda" if "cuda" in kinds else "cpu"], ranks)
        # by rules, or all slots in one way
        compressor: Any = self.compressor or FP32()
        way, rules = (compressor, self.memory, self.communicator), self.by_layer

        def make(slots: list[Slot]) -> Plan:
            if self.groups:  # its names may be of parameters that are not among these slots
                self.groups.check_names(parameters)
            return cut_alike(planner.by_rules(rules, slots) if rules else planner.in_one_way(way, slots), slots)

        return make

    def mesh(self, own: Callable[[], Transport | Mesh], device: torch.device) -> Mesh:
        """The user's mesh, or one of the job's `own`. Raises ValueError where it cannot carry tensors on `device`."""
        # process groups that were made for nothing are closed again
        mesh = Mesh.of(self.transport or own())
        try:
            mesh.check(device)
        except ValueError:
            self.close_own(mesh)
            raise
        return mesh

    def close_own(self, mesh: Mesh) -> None:
        """Closes a mesh that is not needed, unless it is the user's."""
        if self.owns_mesh:
            mesh.close()

    @property
    def owns_mesh(self) -> bool:
        """Whether the job closes its mesh in the end."""
        return self.transport is None


@dataclass(frozen=True, kw_only=True)
class StepChoices(Choices):
    """A user's `AttachOptions` with their defaults."""

    candidates: Sequence[Compressor | Group] = ()
    fidelity: float | None = None
    controller: Controller | None = None
    find_unused_parameters: bool = False
    scaler: torch.amp.GradScaler | None = None
    elastic: bool = False
    rows: Compressor | str | None = None
    finds_plans: ClassVar[bool] = True

    @cached_property
    def automatic(self) -> bool:
        """Whether the plan is found while training."""
        rules = self.by_layer
        return not all(rule.fixed for rule in rules) if rules else self.compressor is None

    def check(self) -> None:
        super().check()
        # each option by itself
        check_type("controller", self.controller, (Controller,), "gw.GraVAC()")
        check_numbers(self.controller)
        check_type("candidates", self.candidates, (list, tuple), "[gw.BF16(), gw.TopK(0.01)]", optional=False)
        check_type("scaler", self.scaler, (torch.amp.GradScaler,), "torch.amp.GradScaler()")
        check_type("rows", self.rows, (Compressor, str), "gw.Quantized(8)")
        row_way(self.rows)
        check_type("elastic", self.elastic, (bool,), "True", optional=False)
        check_type("find_unused_parameters", self.find_unused_parameters, (bool,), "True", optional=False)
        # options that exclude each other
        if self.controller and (self.automatic or self.compressor == NATIVE):
            name = type(self.controller).__name__
            raise ValueError(f"{name} needs a compressor to start from, such as gw.TopK(0.01)")
        if self.rules and self.candidates:
            raise ValueError("with rules each has candidates of its own; write ('*', [gw.BF16(), gw.TopK(0.01)])")
        if self.compressor is not None and self.candidates:
            raise ValueError("candidates are for the automatic plan; leave the compressor out, or name it alone")
        if not self.automatic and self.fidelity is not None:
            raise ValueError("fidelity bounds what the automatic plan may lose; leave the compressor out, or fidelity")
        if self.elastic and self.automatic:
            raise ValueError("elastic=True cannot find a plan meanwhile; name a compressor, such as gw.TopK(0.01)")
        if self.automatic or isinstance(self.controller, Auto):
            # beside lists of a rule these are of the compressor for the rest
            parts = {} if self.automatic and self.rules else {"memory": self.memory, "communicator": self.communicator}
            check_ignored(dense=self.dense, groups=self.groups, **parts)
        # what Auto refuses is refused before anything is opened
        self.controlled_by()

    def controlled_by(self) -> Controller | None:
        """The controller that changes the plan while training: `Auto`, where a compressor is to be chosen."""
        return Auto(self.candidates, self.fidelity, rules=self.by_layer) if self.automatic else self.controller

    def try_out(
        self,
        parameters: Mapping[str, nn.Parameter],
        slots: Sequence[Slot] = (),
        *,
        trained: Collection[str] | None = None,
        sparse: Collection[str] = (),
        no_native: str = NO_NATIVE,
    ) -> None:
        """Raises ValueError for what several ranks refuse, and for compressors of updates, which need several.
        `trained` are the parameters that are trained now, by default all; `no_native` is why the plan may not be
        native, "" where it may."""
        slots = slots or slots_of(parameters)
        warn_of(self.by_layer, slots)
        # the plan of the parameters that are trained now
        make, now = self.plan(parameters, lambda: 1), parameters.keys() if trained is None else trained
        dense = [slot for slot in slots if slot.name not in sparse]
        planned = [slot for slot in dense if slot.name in now]
        plan, waiting = make(planned), {slot.name for slot in slots} - {*now}
        plan = plan.only(set(plan.names) - waiting)
        # as the runtime of several ranks does
        plan.check(planned)
        check_sparse(sparse, planned, self.rows)
        self._check_fits(plan, parameters)
        if plan.native and no_native:
            raise ValueError(no_native)
        check_means(plan, "one rank exchanges none")
        if (controller := self.controlled_by()) and not plan.native:
            # it may be for parameters that are frozen now
            controller.check(make(dense))

    def _check_fits(self, plan: Plan, parameters: Mapping[str, nn.Parameter]) -> None:
        """Raises ValueError for a plan that the parameters or the weights do not fit."""
        check_unsharded(plan, parameters.values())
        check_weighted(plan, self.weight)

    def runtime(
        self,
        front_end: str,
        parameters: Mapping[str, nn.Parameter],
        slots: Sequence[Slot],
        mesh: Mesh,
        *,
        planned: Sequence[Slot] | None = None,
        trained: Collection[str] | None = None,
        sparse: Collection[str] | None = None,
        **options: Any,
    ) -> Runtime:
        """The runtime of a job that reduces every step. `planned` are the slots that plans are made for, where they are
        not those of this rank; `trained`, `sparse` (None: there is none here) and `options` are as in `JobOptions`."""
        finds_sparse, sparse = sparse is not None, sparse or ()
        # plans are made for the parameters that are trained now; the others have slots as well
        ranks = mesh.replica.world
        plan, whole = self.plan(parameters, lambda: ranks), list(slots if planned is None else planned)
        now = [slot for slot in whole if trained is None or slot.name in trained]
        first, way = [slot for slot in now if slot.name not in sparse], row_way(self.rows)
        device = device_of({slot.name: parameters[slot.name] for slot in now})

        def fits(plan: Plan) -> None:
            check_sparse(sparse, first, self.rows, mesh)
            self._check_fits(plan, parameters)

        if not options.get("voted"):
            # where steps are voted on, a new quorum makes the same again
            warn_of(self.by_layer, whole)
        # the ranks compare these when they meet
        facts = {
            "front end": front_end, "find_unused_parameters": str(self.find_unused_parameters),
            "scaler": "yes" if self.scaler else "no", "elastic": str(self.elastic), **facts_of(self.by_layer),
            "sparse gradients": ", ".join(sorted(sparse)), "rows": " ".join(map(str, way)),
            "weight": "no" if self.weight is None else "yes",
        }  # fmt: skip
        return Runtime(partial(plan, first), slots, mesh, device, JobOptions(
            seed=self.seed, controller=self.controlled_by(), profiler=profiler_for(whole, mesh, device),
            follow_order=not (self.fixed_plan or self.elastic),
            planned=planned, elastic=self.elastic, trained=trained, plan_for=plan,
            find_unused=self.find_unused_parameters, owns_mesh=self.owns_mesh, facts=facts, sparse=sparse, rows=way,
            finds_sparse=finds_sparse,
            fits=fits, **{"weight": weight_function(self.weight), "scale": scale_from(self.scaler), **options},
        ))  # fmt: skip
