"""Configurations to compare: plain DDP, torch's hooks, no communication, or a compressor with memory and communicator.

Written as `dense` (`ddp` is read as that), `nocomm`, or `compressor[:value,...][+memory][+communicator][+controller]`,
such as `topk:0.01`, `topk:ratio=0.01+residual+allgather`, `powersgd:4`, `topk:0.1+gravac:10,1000,window=50`.
`localsteps[:value,...]+` in front sends pseudo-gradients every 500 steps, or as many as the value says, as in
`localsteps:30+chunktopk:64+residual:0.95`; alone, it sends float32.
`@25mb`, `@4` or `@hybrid` after a compressor say how it groups gradients: up to 25 MB each, 4 groups, or small matrices
dense; `dense@25mb` sets DDP's. `topk:0.01@planned` has `Auto` choose the groups for the shortest step; `auto` has it
choose all, for the most progress per second. `torch-fp16`, `torch-bf16` and `torch-powersgd:4` are torch's own hooks of
DDP. `plan:FILE` is a plan that was saved. Behind `;` come rules by layer, as in `topk:0.01;*.norm.*=fp32;dim<2=bf16`:
what matches a pattern first is sent in its way; of `bf16|qsgd`, or all that `auto` has, the automatic plan chooses.
"""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from hashlib import sha256
from typing import Any

from torch import nn
from torch.amp import GradScaler  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.communicators import Communicator
from gradwire.compressors import FP32, Compressor
from gradwire.construct import construct
from gradwire.controllers import Controller
from gradwire.frontends import Handle, LocalSteps, Outer, attach
from gradwire.frontends.options.given_rules import GivenRule, parts_of, rules_of
from gradwire.groups import Grouping
from gradwire.lab.local import LocalStepsSpec
from gradwire.lab.names import AUTO, DDP, DENSE, LOCAL, NOCOMM, PLAN, PLANNED
from gradwire.lab.rate import Rate
from gradwire.lab.saved_files import saved
from gradwire.lab.torch_hooks import TORCH_HOOKS, TorchHook
from gradwire.memories import Memory
from gradwire.notation import lowered, read_grouping, read_parts, read_rule, way_of
from gradwire.plans import Group, Plan, default_communicator, default_memory
from gradwire.slots import Slot
from gradwire.torch_private.compiled import named_parameters
from gradwire.transports import Mesh, Transport
from gradwire.tuner import Auto
from gradwire.unknown import unknown


@dataclass(frozen=True)
class Configuration:
    """One way to reduce gradients; without a compressor, plain DDP, a hook of torch's, or no reduction."""

    text: str
    """As it was read."""
    compressor: Compressor | None = None
    memory: Memory | None = None
    communicator: Communicator | None = None
    grouping: Grouping | None = None
    """How gradients are grouped; by default as the compressor's plan has them."""
    controller: Controller | None = None
    plan: Plan | None = None
    """A plan that was saved, in place of all the above."""
    local: LocalStepsSpec | None = None
    """Local steps, after which pseudo-gradients are reduced."""
    hook: TorchHook | None = None
    """A hook of torch's, in place of all the above but the size of DDP's buckets."""
    rules: tuple[GivenRule, ...] = ()
    """By layer; the compressor is for the rest."""

    @property
    def silent(self) -> bool:
        """Whether nothing is sent: for timing a step by itself."""
        return self.text == NOCOMM

    @property
    def bucket_mb(self) -> float | None:
        """The size of DDP's buckets; None for its own."""
        return self.grouping.bucket_mb if self.grouping and not self.compressor else None

    @property
    def pairs(self) -> list[tuple[Compressor, Memory | None]]:
        """The compressors by which it sends, each with the memory that is named."""
        if self.plan:
            return [(group.compressor, group.memory) for group in self.plan.groups]
        ruled = [parts_of(way)[:2] for rule in rules_of(self.rules) for way in rule.candidates]
        return [*ruled, (self.compressor, self.memory)] if self.compressor else ruled

    @property
    def every(self) -> int:
        return self.local.inner_steps if self.local else 1

    @property
    def delay(self) -> int:
        """Steps between the end of a round and the use of its mean; 0 without local steps."""
        return self.local.delay if self.local else 0

    def has_mean(self, step: int) -> bool:
        """Whether this step puts a round's mean into the parameters; without local steps every one does."""
        return step > self.delay and (step - self.delay) % self.every == 0

    @property
    def slug(self) -> str:
        """The name of its folder. One that is too long for a file system is cut, and ends in a hash of the text."""
        name = re.sub(r"[^\w.=]+", "-", self.text)
        return name if len(name.encode()) <= 250 else f"{name[:50]}-{sha256(self.text.encode()).hexdigest()[:8]}"

    def fresh_controller(self, scheduler: Any) -> Controller | None:
        """A copy of the controller without state, which reads the learning rate from `scheduler`."""
        controller: Any = self.controller
        if not is_dataclass(self.controller):
            return deepcopy(controller)
        names = {field.name for field in fields(controller)}
        return replace(controller, **{"scheduler": scheduler} if "scheduler" in names else {})

    def settled(self, plan: Plan | None) -> "Configuration":
        """This one with the plan that it has chosen, where it chooses one; plain DDP in place of a native one."""
        if plan is None or self.controller is None or self.controller.chosen:
            return self
        return Configuration(self.text, plan=None if plan.native else plan)

    def attach(
        self,
        model: nn.Module,
        seed: int,
        controller: Controller | None = None,
        scaler: GradScaler | None = None,
        *,
        transport: Transport | Mesh | None = None,
        mesh: DeviceMesh | None = None,
    ) -> Handle | None:
        """Makes a fresh DDP model, or the replicas of one that FSDP2 shards over a `mesh`, reduce in this way; None
        where Gradwire has no part in the backward pass."""
        # no communication at all: the measure of what communication costs
        if self.silent and isinstance(model, DistributedDataParallel):
            model.register_comm_hook(None, noop_hook)
        # a plan, or one way for all groups
        where: dict[str, Any] = {"transport": transport, "mesh": mesh, "seed": seed, "scaler": scaler}
        if self.plan:
            return attach(model, self.plan, **where)
        if self.compressor is None or self.local:
            return None
        return attach(
            model, self.compressor, memory=self.memory, communicator=self.communicator, groups=self.grouping,
            rules=self.rules, controller=controller, **where,
        )  # fmt: skip

    def local_steps(
        self,
        inner: Optimizer,
        model: nn.Module,
        transport: Transport | Mesh | None,
        mesh: DeviceMesh | None,
        seed: int,
    ) -> LocalSteps | None:
        """Local steps around the optimizer of a `model` that is not reduced between replicas (ranks, or those of a
        `mesh`); None where every step is reduced."""
        if (local := self.local) is None:
            return None
        return LocalSteps(
            inner, model, self.compressor, memory=self.memory, communicator=self.communicator, groups=self.grouping,
            rules=self.rules, inner_steps=local.inner_steps, outer=Outer(local.lr, local.momentum),
            fragments=local.fragments, delay=local.delay, mix=local.mix, transport=transport, mesh=mesh, seed=seed,
        )  # fmt: skip


def parse(text: str) -> Configuration:
    """Reads one configuration.

    Raises ValueError for an unknown name, a value that does not fit, and a pairing that makes no sense."""
    if text.startswith(PLAN):
        return Configuration(text, plan=saved(Plan, text.removeprefix(PLAN)))
    return _ruled(*text.split(";")) if ";" in text else _plain(text)


def _plain(text: str) -> Configuration:
    # a plan, or groups and parts
    text = re.sub(rf"^{DDP}(?=[@+]|$)", DENSE, lowered(text))
    parts, at, groups = text.partition("@")
    planned = groups == PLANNED
    grouping = read_grouping(groups) if at and not planned else None
    local, (head, *others) = _local(parts.split("+"))
    # without a compressor there is nothing to combine
    if head == AUTO:
        if at or local or others:
            raise ValueError(f"{AUTO} chooses all parts by itself: write {AUTO} alone, not {text!r}")
        return Configuration(AUTO, FP32(), controller=Auto())
    if head in (DENSE, NOCOMM):
        if local:
            raise ValueError(f"{text!r} cannot be: write {LOCAL} alone, which sends float32, or +compressor after it")
        if others:
            raise ValueError(f"{head} has no memory and no communicator: write {head} alone, not {text!r}")
        if planned or (grouping and (head == NOCOMM or grouping.bucket_mb is None)):
            raise ValueError(f"{text!r} cannot be: only dense and compressors have groups, those of dense in MB")
        return Configuration(text, grouping=grouping)
    if head.partition(":")[0] in TORCH_HOOKS:
        return _hooked(text, head, grouping, alone=not local and not others and not planned)
    # what does not fit together is refused here, not on the ranks
    compressor, memory, communicator, controller = read_parts(
        text, head, others, (DENSE, NOCOMM, LOCAL, AUTO, *TORCH_HOOKS)
    )
    group = Group(
        (), compressor, memory or default_memory(compressor), communicator or default_communicator(compressor)
    )
    if grouping:
        grouping.check(compressor)
    if local and controller:
        raise ValueError(f"{text!r} cannot be: controllers are for exchanges of every step, leave {others[-1]} out")
    if planned:
        return _planned(text, local or controller, compressor, memory, communicator)
    configuration = Configuration(text, compressor, memory, communicator, grouping, controller, local=local)
    if trial := configuration.fresh_controller(Rate()):
        trial.check(Plan((group,)))
    return configuration


def _ruled(head: str, *given: str) -> Configuration:
    """`head` with rules, each as PATTERN=WAY."""
    plain = parse(head)
    # what no rule matches goes by the head
    if not plain.compressor or (plain.controller and not plain.controller.chosen and plain.text != AUTO):
        raise ValueError(f"{head} takes no rules, which are for compressors and {AUTO}: leave {given[0]!r} out")
    pairs = list(map(read_rule, given))
    rest = AUTO if plain.text == AUTO else way_of(plain.compressor, plain.memory, plain.communicator)
    rules, text = rules_of([*pairs, ("*", rest)]), ";".join((plain.text, *given))
    if all(rule.fixed for rule in rules):
        return replace(plain, text=text, rules=tuple(pairs))
    # an automatic plan begins dense
    if plain.local or plain.grouping or (plain.controller and plain.text != AUTO):
        raise ValueError(f"{text!r} leaves a choice to the automatic plan, which {plain.text} has no room for")
    dense: list[GivenRule] = [(pattern, FP32()) for pattern, _ in pairs]
    return Configuration(text, FP32(), controller=Auto(rules=rules), rules=tuple(dense))


def _planned(
    text: str, other: Controller | LocalStepsSpec | None, compressor: Compressor, *parts: Any
) -> Configuration:
    if other:
        raise ValueError(f"{text!r} cannot be: @{PLANNED} has a controller of its own, for exchanges of every step")
    return Configuration(text, FP32(), controller=Auto([way_of(compressor, *parts)], objective="step"))


def _hooked(text: str, head: str, grouping: Grouping | None, *, alone: bool) -> Configuration:
    name, colon, arguments = head.partition(":")
    if not alone:
        raise ValueError(
            f"{name} is a hook of torch's DDP, which combines with nothing: write {head} alone, not {text!r}"
        )
    if grouping and grouping.bucket_mb is None:
        raise ValueError(f"{text!r} cannot be: {name} reduces DDP's buckets, whose size is in MB, as in {head}@25mb")
    hook = construct(TORCH_HOOKS[name], arguments.split(",") if colon else [], name)
    return Configuration(text, grouping=grouping, hook=hook)


def _local(parts: list[str]) -> tuple[LocalStepsSpec | None, list[str]]:
    """Local steps, if they are the first of `parts`, and the other parts, which are not empty."""
    name, colon, arguments = parts[0].partition(":")
    if name != LOCAL:
        return None, parts
    return construct(LocalStepsSpec, arguments.split(",") if colon else [], LOCAL), parts[1:] or ["fp32"]


def parse_all(texts: Sequence[str]) -> list[Configuration]:
    """Reads configurations that are to be compared. Raises ValueError also for one given twice."""
    configurations = [parse(text) for text in texts]
    seen = [configuration.text for configuration in configurations]
    if twice := next((text for text in seen if seen.count(text) > 1), None):
        raise ValueError(f"configuration {twice!r} is given twice")
    return configurations


def check_plans(configurations: Sequence[Configuration], make_model: Callable[[], nn.Module]) -> None:
    """Raises ValueError, naming a parameter, where a configuration's plan is for another model."""
    if planned := [configuration.plan for configuration in configurations if configuration.plan]:
        named = [(name, p) for name, p in named_parameters(make_model()) if p.requires_grad and p.numel()]
        for plan in planned:
            plan.check([Slot.of(name, parameter) for name, parameter in named])


def check_hooks(configurations: Sequence[Configuration], shard: int) -> None:
    """Raises ValueError for hooks of DDP where `shard` ranks hold a model together, which FSDP2 does."""
    if shard > 1 and (hooked := next((each.text for each in configurations if each.hook), None)):
        raise ValueError(f"{hooked} is a hook of torch's DDP, and --shard takes FSDP2 instead: leave one of them out")


def check_autocast(configurations: Sequence[Configuration], autocast: str | None) -> None:
    """Raises ValueError for a type that autocast does not have here, and for local steps with float16, whose overflows
    skip a step on one rank alone."""
    if autocast not in (None, "bf16", "fp16"):
        raise unknown("autocast to", autocast, ("bf16", "fp16"))
    if autocast == "fp16" and (local := next((each.text for each in configurations if each.local), None)):
        raise ValueError(f"{local} takes steps rank by rank, which float16's overflows would skip on one of them: bf16")
