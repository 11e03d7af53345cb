"""Fragments of local steps: the parts of a model that are sent one at a time."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradwire.frontends.local_steps.schedule import Schedule
from gradwire.frontends.model_replica import ModelReplica
from gradwire.frontends.updates import check_moves
from gradwire.options import check_type
from gradwire.plans import Plan
from gradwire.slots import Layout, Slot

Fragments = int | Iterable[nn.Module]
"""A number of about equal parts, or the module of each, which may be an `nn.ModuleList`."""


def cut(model: nn.Module, parameters: Mapping[str, nn.Parameter], fragments: Fragments) -> list[tuple[str, ...]]:
    """The names of each fragment's parameters. Raises ValueError where they do not make up the model."""
    check_type("fragments", fragments, (int, Iterable), "4, or [model.a, model.b]", optional=False)
    # a count: about equal parts
    if isinstance(fragments, int):
        return _cut_evenly(parameters, fragments)
    for module in fragments:
        check_type("fragments", module, (nn.Module,), "[model.a, model.b], or a count", optional=False)
    # modules: each has some parameters, all of them cover the model, no two overlap
    names = {id(p): name for name, p in parameters.items()}
    parts = [tuple(names[id(p)] for p in module.parameters() if id(p) in names) for module in fragments]
    covered = Counter(name for part in parts for name in part)
    if missing := [name for name in parameters if name not in covered]:
        raise ValueError(
            f"no fragment has parameter {missing[0]!r}; fragments=[...] must cover the model, or pass a count"
        )
    if twice := [name for name, count in covered.items() if count > 1]:
        raise ValueError(
            f"two fragments have parameter {twice[0]!r}; each belongs in one, or pass a count: fragments=4"
        )
    if not all(parts):
        raise ValueError("a fragment has no parameter that needs a gradient; leave it out")
    return parts


def _cut_evenly(parameters: Mapping[str, nn.Parameter], count: int) -> list[tuple[str, ...]]:
    """Parts of about equal size, each of neighbours in the model's order."""
    if not 1 <= count <= len(parameters):
        raise ValueError(f"fragments={count} does not fit a model of {len(parameters)} parameters; use 1 to as many")
    sizes = {name: p.numel() for name, p in parameters.items()}
    parts: list[tuple[str, ...]] = []
    left, names = sum(sizes.values()), list(sizes)
    # one parameter at least for each fragment that follows, and as near to an equal part as can be
    while len(parts) < count - 1:
        share = left / (count - len(parts))
        size = 0
        end = 0
        # one at least for each that follows
        most = len(names) - (count - len(parts) - 1)
        while end < most and (end == 0 or size + sizes[names[end]] / 2 <= share):
            size += sizes[names[end]]
            end += 1
        parts.append(tuple(names[:end]))
        left, names = left - size, names[end:]
    return [*parts, tuple(names)]


class FragmentedModel:
    """A model cut into fragments, with plans whose groups each lie in one fragment."""

    def __init__(
        self, model: nn.Module, replica: ModelReplica, fragments: Fragments, plan: Callable[[list[Slot]], Plan]
    ) -> None:
        self._model = model
        self._replica = replica
        self._wanted = tuple(fragments) if isinstance(fragments, Iterable) else fragments  # an iterator ends
        self._plan = plan
        self.names: list[tuple[str, ...]] = []
        """The names of each fragment's parameters."""

    def cut(self) -> None:
        """Cuts the parameters that are trained now. Raises ValueError where fragments do not make up the model."""
        self.names[:] = cut(self._model, self._replica.trained.parameters(), self._wanted)

    def grow(self, trained: Sequence[str]) -> bool:
        """Adds the parameters that are trained now and were not before: each to the fragment of its module, or else to
        the smallest. Returns whether there are any."""
        known, parameters = {name for part in self.names for name in part}, self._replica.parameters
        if not (new := [name for name in trained if name not in known]):
            return False
        # by a count: to the smallest fragment; by modules: to the fragment of its module
        if isinstance(self._wanted, int):
            sizes = [sum(parameters[own].numel() for own in part) for part in self.names]
            for name in new:
                smallest = sizes.index(min(sizes))
                self.names[smallest] += (name,)
                sizes[smallest] += parameters[name].numel()
        else:
            wanted = known.union(new)
            self.names[:] = cut(self._model, {n: p for n, p in parameters.items() if n in wanted}, self._wanted)
        return True

    def plan(self, slots: list[Slot]) -> Plan:
        """One plan, of the groups of each fragment planned by itself."""
        parts = map(set, self.names)
        groups = [g for part in parts for g in self._plan([slot for slot in slots if slot.name in part]).groups]
        # a user's plan is the same for all fragments
        return Plan(tuple(dict.fromkeys(groups)))

    def check_fits(self, plan: Plan) -> None:
        """Raises ValueError for a plan with a group of several fragments."""
        for part in map(set, self.names):
            groups_of(plan, part)

    def fragments(self, plan: Plan, schedule: Schedule) -> "list[Fragment]":
        """The fragments, with their parameters in the plan's order."""
        local = self._replica.local
        return [Fragment({n: local[n] for n in plan.names if n in part}, schedule) for part in map(set, self.names)]


class Fragment:
    """Some parameters of this rank, by name, and what local steps keep for them."""

    anchors: dict[str, Tensor]
    """The shared parameters, in float32 or wider, so that a small outer step on 16 bits is not lost; with eager updates
    this replica's own."""
    pseudo_gradients: dict[str, Tensor]
    """anchor - parameter of this replica, where the anchor is rounded to the parameter's type; later, in the same
    tensors, the mean over the replicas."""
    sent: dict[str, Tensor]
    """A copy of the parameters as they were sent, where the schedule needs it."""
    last_own: dict[str, Tensor]
    """With eager updates, this replica's pseudo-gradients of the last round."""

    def __init__(self, parameters: Mapping[str, Tensor], schedule: Schedule) -> None:
        self.parameters, self._schedule = parameters, schedule
        # anchors: what all replicas share, in float32 or wider, so that small outer steps are not lost
        self.anchors = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in parameters.items()
        }
        # pseudo-gradients side by side, so that one look tells whether all are finite
        layout = Layout(tuple(Slot.of(name, anchor) for name, anchor in self.anchors.items()))
        device = next(iter(self.anchors.values())).device
        self._flat = torch.zeros(layout.numel, dtype=torch.float32, device=device)
        self.pseudo_gradients = dict(zip(parameters, layout.views(self._flat), strict=True))
        # copies that only some schedules need
        self.sent = {name: p.detach().clone() for name, p in parameters.items()} if schedule.keeps_sent else {}
        own = self.pseudo_gradients if schedule.eager else {}
        self.last_own = {name: torch.zeros_like(gradient) for name, gradient in own.items()}

    @torch.no_grad()
    def grown(self, parameters: Mapping[str, Tensor]) -> "Fragment":
        """This fragment with more `parameters`, which begin at their anchors."""
        new = Fragment(parameters, self._schedule)
        # what was trained before keeps its anchors and pseudo-gradients
        new.anchors |= self.anchors
        for mine in ("pseudo_gradients", "sent", "last_own"):
            for name, tensor in getattr(self, mine).items():
                getattr(new, mine)[name].copy_(tensor)
        return new

    @torch.no_grad()
    def measure(self) -> None:
        """Sets `pseudo_gradients` to anchor - parameter, where the anchor is first rounded to the parameter's type."""
        for name, parameter in self.parameters.items():
            anchor = self.anchors[name]
            # parameters became the anchor rounded to their type: what that dropped is no movement
            rounded = anchor.to(parameter.dtype).to(anchor.dtype)
            torch.sub(rounded, parameter, out=self.pseudo_gradients[name])
        self.keep_sent()

    @torch.no_grad()
    def keep_sent(self) -> None:
        """Copies the parameters to `sent`."""
        for name, copy in self.sent.items():
            copy.copy_(self.parameters[name])

    @torch.no_grad()
    def exchange_own(self, weight: float, all_of: Callable[[bool], bool]) -> dict[str, Tensor]:
        """Measures anew, and returns mean + weight·(new - old): the last round's mean, in which this replica's old
        pseudo-gradients are replaced by its new ones. What is not finite counts as zero: the mean, or the new
        pseudo-gradients. `all_of` asks all ranks of the replica, so that one bad shard has all of them do the same."""
        # the mean of the last round
        gradients = {name: mean.clone() for name, mean in self.pseudo_gradients.items()}
        if not all_of(bool(self.are_finite())):
            gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        # this replica's own, of the new round in place of the last
        self.measure()
        if not (finite := all_of(bool(self.are_finite()))):
            self.lose()
        for name, gradient in gradients.items():
            own = self.pseudo_gradients[name] if finite else torch.zeros_like(gradient)
            gradient.add_(own - self.last_own[name], alpha=weight)
            self.last_own[name].copy_(own)
        return gradients

    def lose(self) -> None:
        """Makes all `pseudo_gradients` NaN, as those of a round that no replica takes."""
        self._flat.fill_(torch.nan)

    def are_finite(self) -> Tensor:
        """Whether all `pseudo_gradients` are finite, (); to read it waits for a GPU."""
        return torch.linalg.vector_norm(self._flat, torch.inf).isfinite()

    @torch.no_grad()
    def merge(self, mix: float | None) -> None:
        """Sets parameters to mix·parameter + (1 - mix)·anchor, or, where `mix` is None, to the anchor plus their steps
        since they were sent."""
        # three rules: a mixture, the anchor plus what was trained since, or the anchor itself
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
        """Sets parameters to the anchors."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.anchors[name])

    @torch.no_grad()
    def healed(self, names: Collection[str]) -> None:
        """Sets these parameters to their anchors, which others had right, as if they had just been sent."""
        for name in self.parameters.keys() & names:
            self.parameters[name].copy_(self.anchors[name])
            if name in self.sent:
                self.sent[name].copy_(self.parameters[name])


@contextmanager
def at_anchors(fragments: Sequence[Fragment]) -> Iterator[None]:
    """A context in which parameters are the anchors; afterwards they have their own values again."""
    own = [(p, p.detach().clone()) for fragment in fragments for p in fragment.parameters.values()]
    for fragment in fragments:
        fragment.reset()
    try:
        yield
    finally:
        for parameter, copy in own:
            parameter.data.copy_(copy)


def groups_of(plan: Plan, fragment: Collection[str]) -> list[int]:
    """The groups of a plan that have a fragment's parameters. Raises ValueError for a group that has others as well,
    and for a plan that decodes no means."""
    check_moves(plan)
    found = [index for index, group in enumerate(plan.groups) if any(name in fragment for name in group.slots)]
    # a group is sent with its fragment: it can belong to one only
    for index in found:
        if strangers := [name for name in plan.groups[index].slots if name not in fragment]:
            raise ValueError(
                f"the plan groups {strangers[0]!r} with parameters of another fragment; make a group for each fragment"
            )
    return found
