"""A user's rules by layer, read, and the plans that follow from them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire.communicators import Communicator
from gradwire.compressors import FP32, Compressor
from gradwire.groups import Grouping
from gradwire.memories import Memory
from gradwire.notation import read_ways
from gradwire.options import check_type
from gradwire.plans import Group, GroupSizes, Plan, uniform
from gradwire.rules import Rule, joined, matches, sort_by
from gradwire.slots import Slot
from gradwire.ways import CompressorWithMemory, Way

GivenWay = Way | str
GivenRule = tuple[str, GivenWay | Sequence[GivenWay]]
"""A pattern, and how what matches it is sent; of a list the automatic plan chooses."""
Parts = tuple[Compressor, Memory | None, Communicator | None]
"""How a slot is sent: None for parts that are to suit the compressor."""
SlotPredicate = Callable[[Slot], bool] | None
_log = logging.getLogger("gradwire")
EXAMPLE = "[('*.norm.*', gw.FP32()), ('*', gw.TopK(0.01))]"


def rules_of(given: Sequence[GivenRule], rest: Way | None = None) -> tuple[Rule, ...]:
    """A user's rules, and one for the rest. Raises ValueError, naming one that works, for what is no rule, and for two
    of one pattern."""
    check_type("rules", given, (list, tuple), EXAMPLE, optional=False)
    rules = (*map(_rule, given), *([Rule("*", (rest,))] if rest else []))
    patterns = [rule.pattern for rule in rules]
    if twice := next((pattern for pattern in patterns if patterns.count(pattern) > 1), None):
        raise ValueError(f"two rules are for {twice!r}, and the first one counts; keep one")
    return rules


def facts_of(rules: Sequence[Rule]) -> Mapping[str, str]:
    """The rules as ranks compare them."""
    return {f"rule {number}": str(rule) for number, rule in enumerate(rules, 1)}


def warn_of(rules: Sequence[Rule], slots: Sequence[Slot]) -> None:
    """Warns of rules that match none of the parameters that can be reduced."""
    for rule in rules:
        if not any(matches(rule.pattern, slot) for slot in slots):
            _log.warning("the rule %r matches no parameter that is reduced, such as %r", rule.pattern, slots[0].name)


@dataclass(frozen=True)
class Planner:
    """Makes plans of slots: the options that do not say by which compressor a slot is sent."""

    dense: SlotPredicate
    """Which slots travel uncompressed; None for the default."""
    groups: Grouping | None
    sizes: GroupSizes
    ranks: Callable[[], int]
    """How many ranks compress among each other."""

    def in_one_way(self, way: Parts, slots: list[Slot]) -> Plan:
        """The plan in which all slots are sent in one way."""
        plan = uniform(slots, *way, self.dense, self.ranks(), self.sizes)
        return self.groups.regroup(plan, slots, way[0]) if self.groups and slots else plan

    def by_rules(self, rules: Sequence[Rule], slots: list[Slot]) -> Plan:
        """The plan in which each rule's slots have groups of their own; dense where the automatic plan is to choose."""
        chosen = all(rule.fixed for rule in rules)
        sorted_slots = sort_by([rule.pattern for rule in rules], slots)
        # the one way of each rule, or dense at first
        ways = [parts_of(rule.candidates[0] if chosen else FP32()) for rule in rules]
        # a grouping for some of the rules; where it suits none of them, it says why
        suited = [self.groups is not None and self.groups.suits(compressor) for compressor, *_ in ways]
        plans: list[Plan] = []
        for rule, way, suits in zip(rules, ways, suited, strict=True):
            planner = self if suits or not any(suited) else replace(self, groups=None)
            plan = planner.in_one_way(way, sorted_slots[rule.pattern])
            plans.append(Plan(tuple(replace(group, rule=rule.pattern) for group in plan.groups)))
        return joined(plans, slots)


def parts_of(way: Way) -> Parts:
    """A way's compressor, memory and communicator; None for what it does not name."""
    match way:
        case Group(_, compressor, memory, communicator):
            return compressor, memory, communicator
        case CompressorWithMemory(compressor, memory):
            return compressor, memory, None
        case compressor:
            return compressor, None, None


def _rule(given: Any) -> Rule:
    match given:
        case (str(pattern), list() | tuple() as ways) if pattern:
            return Rule(pattern, tuple(way for one in ways for way in _ways(one)))
        case (str(pattern), str() | Compressor() | CompressorWithMemory() | Group() as way) if pattern:
            return Rule(pattern, tuple(_ways(way)))
        case _:
            raise ValueError(f"{given!r} is no rule; pass pairs of a pattern and a compressor, rules={EXAMPLE}")


def _ways(given: Any) -> Sequence[Way]:
    match given:
        case str():
            return read_ways(given)
        case Compressor() | CompressorWithMemory() | Group():
            return [given]
        case _:
            raise ValueError(f"a rule has {given!r} in place of a compressor, such as gw.TopK(0.01)")
