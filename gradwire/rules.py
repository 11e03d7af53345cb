"""Rules by layer: each parameter is sent in the way of the first rule that it matches.

gw.attach(ddp, rules=[("*.embedding.*", gw.Quantized(8)), ("dim<2", gw.FP32()), ("*", gw.PowerSGD(1 / 6, bits=4))])
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import TypeVar

from gradwire.plans import Group, Plan
from gradwire.slots import NamedTensor
from gradwire.ways import Way

_BOUND = re.compile(r"(numel|dim)\s*([<>])\s*(\d+)")


S = TypeVar("S", bound=NamedTensor)


@dataclass(frozen=True)
class Rule:
    """Parameters by a pattern, and the ways in which they may be sent.

    Raises ValueError for a pattern that cannot be read."""

    pattern: str
    """Conditions with `&` between them: names as fnmatch has them, where `*.` may stand for none, and sizes such as
    `numel<4096` and `dim>1`. Without rules it is empty."""
    candidates: tuple[Way, ...] = ()
    """One way, or those among which the automatic plan chooses; without any, those that need no tuning."""

    def __post_init__(self) -> None:
        for term in _terms(self.pattern) if self.pattern else ():
            if not term or (re.search("[<>]", term) and not _BOUND.fullmatch(term)):
                raise ValueError(
                    f"the rule's pattern {self.pattern!r} cannot be read; write names such as '*.norm.*', and "
                    "numel<4096, numel>4095, dim<2 or dim>1, with & between them"
                )

    def __str__(self) -> str:
        candidates = " or ".join(map(str, self.candidates)) or "auto"
        return f"{self.pattern!r}: {candidates}" if self.pattern else candidates

    @property
    def fixed(self) -> bool:
        """Whether it names one way."""
        return len(self.candidates) == 1


def matches(pattern: str, slot: NamedTensor) -> bool:
    """Whether a slot meets all of a pattern's conditions."""
    return all(_meets(term, slot) for term in _terms(pattern))


def sort_by(patterns: Iterable[str], slots: Sequence[S]) -> dict[str, list[S]]:
    """The slots of each pattern: those that it is the first to match. Raises ValueError, naming it, for a slot that
    matches none."""
    found: dict[str, list[S]] = {pattern: [] for pattern in patterns}
    for slot in slots:
        # the first rule that matches
        own = next((pattern for pattern in found if matches(pattern, slot)), None)
        if own is None:
            raise ValueError(
                f"no rule matches parameter {slot.name!r}; end the rules with one for '*', or name a compressor as well"
            )
        found[own].append(slot)
    return found


def joined(plans: Iterable[Plan], slots: Sequence[NamedTensor]) -> Plan:
    """One plan of the groups of several, sent in the order in which they are complete; each plan keeps its order."""
    place = {slot.name: place for place, slot in enumerate(slots)}
    groups: list[tuple[int, Group]] = []
    for plan in plans:
        # a group is complete with its last slot, and sent behind those before it in its plan
        complete = accumulate((max(map(place.__getitem__, group.slots)) for group in plan.groups), max)
        groups += zip(complete, plan.groups, strict=True)
    return Plan(tuple(group for _, group in sorted(groups, key=lambda each: each[0])))


def _terms(pattern: str) -> list[str]:
    return [term.strip() for term in pattern.split("&")]


def _meets(term: str, slot: NamedTensor) -> bool:
    if bound := _BOUND.fullmatch(term):
        # a size
        value, limit = getattr(slot, bound[1]), int(bound[3])
        return value < limit if bound[2] == "<" else value > limit
    # `*.` may stand for no name
    return fnmatchcase(slot.name, term) or fnmatchcase(f".{slot.name}", term)
