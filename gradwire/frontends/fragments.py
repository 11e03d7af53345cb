"""Local steps: the parts of a model that are sent at a time, and when each of them is."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradwire.frontends.model_replica import ModelReplica
from gradwire.plans import Plan
from gradwire.slots import Layout, Slot

Fragments = int | Sequence[nn.Module]
"""How many parts of about equal size, or the modules of each: one, or several in an `nn.ModuleList`."""


def cut(model: nn.Module, parameters: Mapping[str, nn.Parameter], fragments: Fragments) -> list[tuple[str, ...]]:
    """The names of each fragment's parameters. Raises ValueError where they do not make up the model."""
    if isinstance(fragments, int):
        return _cut_evenly(parameters, fragments)
    names = {id(p): name for name, p in parameters.items()}
    parts = [tuple(names[id(p)] for p in module.parameters() if id(p) in names) for module in fragments]
    covered = [name for part in parts for name in part]
    if missing := [name for name in parameters if name not in covered]:
        raise ValueError(
            f"no fragment has parameter {missing[0]!r}; fragments=[...] must cover the model, or pass a count"
        )
    if twice := [name for name in covered if covered.count(name) > 1]:
        raise ValueError(
            f"two fragments have parameter {twice[0]!r}; each belongs in one, or pass a count: fragments=4"
        )
    if not all(parts):
        raise ValueError("a fragment has no parameter that needs a gradient; leave it out")
    return parts


def _cut_evenly(parameters: Mapping[str, nn.Parameter], count: int) -> list[tuple[str, ...]]:
    """Neighbours together, in the model's order."""
    if not 1 <= count <= len(parameters):
        raise ValueError(f"fragments={count} does not fit a model of {len(parameters)} parameters; use 1 to as many")
    sizes = {name: p.numel() for name, p in parameters.items()}
    parts: list[tuple[str, ...]] = []
    left, names = sum(sizes.values()), list(sizes)
    while len(parts) < count - 1:
        share, size, end = left / (count - len(parts)), 0, 0
        most = len(names) - (count - len(parts) - 1)  # one at least for each that follows
        while end < most and (end == 0 or size + sizes[names[end]] / 2 <= share):
            size += sizes[names[end]]
            end += 1
        parts.append(tuple(names[:end]))
        left, names = left - size, names[end:]
    return [*parts, tuple(names)]


class FragmentedModel:
    """A model cut into fragments, and plans for them. `names` are those of each fragment's parameters."""

    def __init__(
        self, model: nn.Module, replica: ModelReplica, fragments: Fragments, plan: Callable[[list[Slot]], Plan]
    ) -> None:
        self._model, self._replica, self._wanted, self._plan = model, replica, fragments, plan
        self.names: list[tuple[str, ...]] = []

    def cut(self) -> None:
        """Cuts the parameters that are trained now. Raises ValueError where fragments do not make up the model."""
        self.names[:] = cut(self._model, self._replica.trained.parameters(), self._wanted)

    def grow(self, trained: Sequence[str]) -> bool:
        """Adds the parameters that are trained now and were not before: each to the fragment of its module, or else to
        the smallest. Returns whether there are any."""
        known, parameters = {name for part in self.names for name in part}, self._replica.parameters
        if not (new := [name for name in trained if name not in known]):
            return False
        if isinstance(self._wanted, int):
            for name in new:
                sizes = [sum(parameters[own].numel() for own in part) for part in self.names]
                self.names[sizes.index(min(sizes))] += (name,)
        else:
            self.names[:] = cut(
                self._model, {n: p for n, p in parameters.items() if n in known or n in new}, self._wanted
            )
        return True

    def plan(self, slots: list[Slot]) -> Plan:
        """One plan, of the groups of each fragment planned by itself."""
        groups = [g for part in self.names for g in self._plan([slot for slot in slots if slot.name in part]).groups]
        return Plan(tuple(dict.fromkeys(groups)))  # a user's plan is the same for all fragments

    def check_fits(self, plan: Plan) -> None:
        """Raises ValueError for a plan with a group of several fragments."""
        for part in self.names:
            groups_of(plan, part)

    def fragments(self, plan: Plan, schedule: "Schedule") -> "list[Fragment]":
        """The fragments, with their parameters in the plan's order."""
        return fragments_of(plan, self.names, self._replica.local, schedule)


@dataclass(frozen=True)
class Schedule:
    """When fragments are sent: number f of F after (f + 1)·H/F inner steps, and every H steps from there; and used
    `delay` steps later, before they are sent again; the next ones queue up behind them. Parameters then become
    mix·own + (1 - mix)·anchor; without `mix` they keep what they moved meanwhile. With `eager`, what travels is used
    when its fragment is sent the next time.

    Raises ValueError where that cannot be."""

    inner_steps: int
    fragments: int
    delay: int = 0
    mix: float | None = None
    eager: bool = False

    def __post_init__(self) -> None:
        if self.inner_steps < self.fragments:
            raise ValueError(
                f"inner_steps={self.inner_steps} are fewer than the {self.fragments} fragments, which are sent one "
                f"at a time; use inner_steps={self.fragments} or more, or fewer fragments"
            )
        if not 0 <= self.delay <= self.inner_steps:
            raise ValueError(
                f"delay={self.delay} is longer than the {self.inner_steps} inner steps after which a fragment is sent "
                "again; use that or less"
            )
        if self.mix is not None and not 0 <= self.mix < 1:
            raise ValueError(f"mix={self.mix} is no share of a replica's own; use 0 to 1, e.g. mix=0.5, or None")

        if self.eager and (self.delay or self.mix is not None):
            raise ValueError("eager=True uses what travels a round later, and mixes nothing; leave out delay and mix")

    @property
    def keeps_sent(self) -> bool:
        """Whether parameters are needed later as they were sent."""
        return self.delay > 0 and self.mix is None

    def due(self, step: int) -> int | None:
        """The fragment to send after so many inner steps."""
        for fragment in range(self.fragments):
            first = (fragment + 1) * self.inner_steps // self.fragments
            if step >= first and (step - first) % self.inner_steps == 0:
                return fragment
        return None


class Fragment:
    """What this rank holds of some parameters, by name, and what belongs to them: `anchors`, which all replicas share;
    `deltas`, what this replica has moved from there, then the mean of that, in place; and `sent`, a copy of the
    parameters as they were sent, where that is kept. With eager updates anchors are this replica's own, and `moved` is
    what it has moved in the last round.

    Anchors are float32 or wider, so that a small outer step on parameters of 16 bits is not lost.
    """

    def __init__(self, parameters: Mapping[str, Tensor], schedule: Schedule) -> None:
        self.parameters, self._schedule = parameters, schedule
        self.anchors = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in parameters.items()
        }
        layout = Layout(tuple(Slot.of(name, anchor) for name, anchor in self.anchors.items()))
        device = next(iter(self.anchors.values())).device
        self._flat = torch.zeros(layout.numel, dtype=torch.float32, device=device)
        self.deltas = dict(zip(parameters, layout.views(self._flat), strict=True))
        self.sent = {name: p.detach().clone() for name, p in parameters.items()} if schedule.keeps_sent else {}
        self.moved = {name: torch.zeros_like(d) for name, d in self.deltas.items()} if schedule.eager else {}

    @torch.no_grad()
    def grown(self, parameters: Mapping[str, Tensor]) -> "Fragment":
        """This fragment with more `parameters`, of which nothing has moved; what it has of its own stays."""
        new = Fragment(parameters, self._schedule)
        new.anchors |= self.anchors
        for mine, its in (self.deltas, new.deltas), (self.sent, new.sent), (self.moved, new.moved):
            for name, tensor in mine.items():
                its[name].copy_(tensor)
        return new

    @torch.no_grad()
    def measure(self) -> None:
        """`deltas` become anchor - parameter."""
        for name, parameter in self.parameters.items():
            torch.sub(self.anchors[name], parameter, out=self.deltas[name])
        self.keep_sent()

    @torch.no_grad()
    def keep_sent(self) -> None:
        """`sent` become the parameters."""
        for name, copy in self.sent.items():
            copy.copy_(self.parameters[name])

    @torch.no_grad()
    def exchange_own(self, share: float) -> dict[str, Tensor]:
        """`deltas` become anchor - parameter. Returns the last round's mean, which they were, with this replica's
        `share` of it replaced by that of what it has moved now. A mean that is not finite, to which nobody's part was
        added, counts as zero, and so does what this replica has moved if that is not."""
        gradients = {name: delta.clone() for name, delta in self.deltas.items()}
        if not self.is_finite():
            gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        self.measure()
        finite = self.is_finite()
        for name, gradient in gradients.items():
            own = self.deltas[name] if finite else torch.zeros_like(gradient)
            gradient.add_(own - self.moved[name], alpha=share)
            self.moved[name].copy_(own)
        return gradients

    def is_finite(self) -> bool:
        """Whether all of `deltas` is. Asks a GPU."""
        return bool(torch.linalg.vector_norm(self._flat, torch.inf).isfinite())

    @torch.no_grad()
    def merge(self, mix: float | None) -> None:
        """Parameters become mix·parameter + (1 - mix)·anchor, or, where `mix` is None, the anchor and what they have
        moved since they were sent."""
        for name, parameter in self.parameters.items():
            anchor = self.anchors[name]
            if mix is not None:
                parameter.lerp_(anchor.to(parameter.dtype), 1 - mix)
            elif name in self.sent:
                parameter.copy_(anchor + (parameter - self.sent[name]))
            else:
                parameter.copy_(anchor)

    @torch.no_grad()
    def reset(self) -> None:
        """Parameters become the anchors."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.anchors[name])


def fragments_of(
    plan: Plan, parts: Sequence[Sequence[str]], parameters: Mapping[str, Tensor], schedule: Schedule
) -> list[Fragment]:
    """The fragments, with their parameters in the plan's order."""
    order = [name for group in plan.groups for name in group.slots]
    return [Fragment({n: parameters[n] for n in order if n in part}, schedule) for part in map(set, parts)]


def groups_of(plan: Plan, fragment: Collection[str]) -> list[int]:
    """The groups of a plan that carry a fragment's parameters. Raises ValueError for a group that carries others as
    well."""
    found = [index for index, group in enumerate(plan.groups) if any(name in fragment for name in group.slots)]
    for index in found:
        if strangers := [name for name in plan.groups[index].slots if name not in fragment]:
            raise ValueError(
                f"the plan groups {strangers[0]!r} with parameters of another fragment; make a group for each fragment"
            )
    return found
