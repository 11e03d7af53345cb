"""Candidates and the plans to try, and corrections of the profile by tried plans."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from sys import float_info
from typing import get_args

import numpy as np

from gradwire.communicators import AllGather, AllReduce, Communicator, ScatterReduce
from gradwire.compressors import BF16, FP32, QSGD, Compressor
from gradwire.memories import NoMemory, Residual
from gradwire.options import check_type, one_line
from gradwire.plan_parts import class_name
from gradwire.plans import Group, Plan, default_memory, sizes_follow_from_shapes
from gradwire.rules import Rule, joined
from gradwire.schedule import (
    Objective,
    Problem,
    Profile,
    Regime,
    Solution,
    Worker,
    baselines,
    evaluate,
    plan_efficiency,
    theil_sen,
    timeline,
)
from gradwire.slots import Slot
from gradwire.split_groups import within_length
from gradwire.ways import CompressorWithMemory, Way

EXAMPLE = "[gw.BF16(), gw.TopK(0.01)]"
MOST_TRIED = 5
"""Plans that are tried in the first trials."""
FAR_APART = 8
"""What a group costs is learnt from tried plans whose numbers of groups differ by this much or more. From nearer ones
the slope is noise, by which layer-by-layer plans would be predicted so slow that they are never tried."""


def rules_by(candidates: Sequence[Way], rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The `rules`, or the one of these `candidates` for all. Raises ValueError, naming what works, for neither."""
    if candidates and rules:
        raise ValueError("rules have candidates of their own; write ('*', [gw.BF16(), gw.TopK(0.01)]) among them")
    check_type("candidates", candidates, (list, tuple), EXAMPLE, optional=False)
    if pair := next((rule for rule in rules if type(rule) is not Rule), None):
        raise ValueError(
            f"Auto() reads no pairs such as {one_line(pair)}; use gw.attach(ddp, rules=[('*', {EXAMPLE})]), which "
            "finds the plan as Auto does"
        )
    return tuple(rules) or (Rule("", tuple(candidates)),)


def check_wanted(candidates: Sequence[Way], fidelity: float | None, objective: Objective) -> None:
    """Raises ValueError for what no plan can be chosen by."""
    check_type("candidates", candidates, (list, tuple), EXAMPLE, optional=False)
    for candidate in candidates:
        check_type("candidates", candidate, (Compressor, CompressorWithMemory, Group), EXAMPLE, optional=False)
    check_type("fidelity", fidelity, (float, int), "0.01")
    if fidelity is not None and not 0 <= fidelity < 1:
        raise ValueError(
            f"fidelity={fidelity} is not the share of dense training's progress that may be lost; "
            "use e.g. fidelity=0.01"
        )
    if objective not in get_args(Objective):
        raise ValueError(f"objective={objective!r} is neither 'progress', per second, nor 'step', the shortest one")
    ways = [ways_of(candidate, 1)[0] for candidate in candidates]
    # of votes alone the shortest step may be asked for, where no progress is compared
    only_votes = objective == "step" and all(way.compressor.sign_vote for way in ways)
    for compressor, memory in ((way.compressor, way.memory) for way in ways):
        if not sizes_follow_from_shapes(compressor):
            raise ValueError(
                f"{type(compressor).__name__}() is no gw.FixedSizeCompressor, which says its bytes before a step; "
                "name e.g. TopK(0.1)"
            )
        if compressor.is_update or (compressor.sign_vote and not only_votes):
            raise ValueError(
                f"{compressor} makes no mean of gradients, which the dense steps beside it do; "
                "name e.g. PowerSGD(1 / 6) or EFSignSGD(), or attach it alone"
            )
        if memory.keeps_momentum:
            raise ValueError(
                f"{memory} sends momentum, which the dense steps beside it have not; name the candidate with "
                f"Residual(), attach {compressor} with its memory alone, or override keeps_momentum where it is none"
            )


def check_rules(rules: Sequence[Rule], fidelity: float | None, objective: Objective) -> None:
    """Raises ValueError for what no plan can be chosen by, and where two classes of the rules' candidates have one
    name, by which plans are written."""
    for rule in rules:
        check_wanted(rule.candidates, fidelity, objective)
    ways = [ways_of(candidate, 1)[0] for rule in rules for candidate in rule.candidates]
    classes = {type(part) for way in ways for part in (way.compressor, way.memory, way.communicator)}
    names = [class_name(cls) for cls in classes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"plans would call two classes of the candidates {twice}; rename one of them, or its file")


def check_first(plan: Plan, rules: Sequence[Rule]) -> None:
    """Raises ValueError for a plan from which none can be searched by these rules."""
    if not is_dense(plan):
        raise ValueError("Auto() begins with dense steps; use attach(ddp, candidates=[...]) and name yours there")
    known = {rule.pattern for rule in rules}
    if strange := next((group.rule for group in plan.groups if group.rule and group.rule not in known), None):
        raise ValueError(
            f"rule {strange!r} is none of Auto's, which would plan by its own alone; leave Auto out, and use "
            "attach(ddp, rules=[...]) with ('*', [gw.BF16(), gw.TopK(0.01)]) last"
        )


def unasked(candidates: Sequence[Way]) -> list[Way]:
    """The candidates that a user's own need beside them: small slots travel dense, but beside votes."""
    return [] if not candidates or any(compressor_of(each).is_cast for each in candidates) else [FP32()]


def may_be_dense(rule: Rule) -> bool:
    """Whether a rule leaves what matches it to float32, if that is best."""
    return not rule.candidates or FP32() in map(compressor_of, rule.candidates)


def by_objective(profile: Profile, objective: Objective, rules: Sequence[Rule]) -> Profile:
    """The profile, from which plans are chosen by this objective."""
    beside = {rule.pattern: unasked(rule.candidates) for rule in rules}
    marked = (replace(each, unasked=each.way.compressor in beside[each.way.rule]) for each in profile.candidates)
    return replace(profile, objective=objective, candidates=tuple(marked))


def with_efficiencies(profile: Profile, known: Profile) -> Profile:
    """The profile with the candidates' efficiencies in a `known` one."""
    before = {each.way: each.efficiency for each in known.candidates}
    candidates = (replace(each, efficiency=before.get(each.way, each.efficiency)) for each in profile.candidates)
    return replace(profile, candidates=tuple(candidates))


def default_candidates(world: int) -> list[Way]:
    """The default candidates, which need no tuning: fp32, bf16, and 8 bits with a residual."""
    return [FP32(), BF16(), *(replace(way, memory=Residual()) for way in ways_of(QSGD(), world))]


def ways_by(rules: Sequence[Rule], world: int) -> tuple[Group, ...]:
    """The ways to send what matches each rule."""
    return tuple(
        replace(way, rule=rule.pattern)
        for rule in rules
        for candidate in [*unasked(rule.candidates), *(rule.candidates or default_candidates(world))]
        for way in ways_of(candidate, world)
    )


def ways_of(candidate: Way, world: int) -> list[Group]:
    """The ways to send that a candidate stands for: with a compressor's own memory and each communicator that may win,
    where it names none."""
    match candidate:
        case Group():
            return [replace(candidate, slots=())]
        case CompressorWithMemory(compressor, memory):
            pass
        case compressor:
            memory = NoMemory() if compressor.is_cast else default_memory(compressor)
    if compressor.summable:
        return [Group((), compressor, memory, AllReduce())]
    communicators: list[Communicator] = [AllGather()]
    # else it depends on the network which of two is faster
    if world > 2 and compressor.takes_parts and not compressor.once_only:
        communicators.append(ScatterReduce())
    return [Group((), compressor, memory, communicator) for communicator in communicators]


def allowed(profile: Profile, fidelity: float | None) -> Profile:
    """The profile without candidates that lose more than this share of training's progress, or that harm it, unless
    the step alone counts. A rule keeps the most efficient of its own."""
    least = 0.0 if fidelity is None else 1 - fidelity
    if profile.objective == "progress":
        least = max(least, float_info.min)
    # a rule's best, of those that the user named
    best: dict[str, float] = {}
    for each in profile.candidates:
        if each.way.rule and not each.unasked:
            best[each.way.rule] = max(each.efficiency, best.get(each.way.rule, 0.0))
    kept = [each for each in profile.candidates if each.efficiency >= min(least, best.get(each.way.rule, least))]
    return replace(profile, candidates=tuple(kept))


def efficiency_of_plan(profile: Profile, plan: Plan) -> float:
    """The efficiency of steps with the plan."""
    known = profile.objective == "step" or is_dense(plan)
    return 1.0 if known else plan_efficiency(profile.problem(), profile.choices(plan))


def shortlist(profile: Profile, found: Solution, regime: Regime, margin: float) -> list[Plan]:
    """The plans to try: the best one; and its rivals, which differ from it in one rule's slots, the first of each rule
    before any second."""
    best, slots = profile.plan(found.groups), profile.slots
    rivals: list[list[Plan]] = []
    for part in profile.by_rule():
        # other plans for one rule's slots, the best one for all others
        own = {slot.name for slot in part.slots}
        others = best.only({slot.name for slot in slots} - own)
        rivals.append([joined([rival, others], slots) for rival in _rivals(part, best.only(own), regime, margin)])
    # the first rival of each rule, then the second of each
    turns = [plan for turn in zip_longest(*rivals) for plan in turn if plan]
    return list(dict.fromkeys([best, *turns]))[:MOST_TRIED]


def _rivals(profile: Profile, chosen: Plan, regime: Regime, margin: float) -> list[Plan]:
    """The plans to try beside the best. First the two best candidates alone, each in DDP's buckets with the small slots
    in the same ones: they win where a group, or computing beside backward, costs more than the model knows. Then each
    candidate alone, in its best buckets and layer by layer, which win where it costs less: those whose predicted
    progress per second is at most `margin` times below the best's, the nearest first."""
    problem = profile.problem()
    found = evaluate(problem, profile.choices(chosen), regime)

    def rate(each: Solution) -> float:
        return plan_efficiency(problem, each.groups) / each.step_s

    # each candidate by itself, in its best buckets
    options = problem.chosen_from
    alone = {option: _alone(problem, regime, option) for option in options}
    best = sorted(options, key=lambda option: rate(alone[option]), reverse=True)[:2]
    # in DDP's own buckets, should the model of the network be wrong
    whole = [baselines.whole_buckets(problem, regime, option) for option in best]
    rivals = [*alone.values(), *(baselines.layer_wise(problem, regime, option) for option in options)]
    # near enough to be tried
    close = sorted((rival for rival in rivals if margin * rate(rival) > rate(found)), key=rate, reverse=True)
    return [profile.plan(each.groups) for each in [*whole, *close]]


def calibrated(profile: Profile, regime: Worker, plans: Sequence[Plan], seconds: Sequence[float], best: int) -> Profile:
    """The profile corrected by tried plans: it predicts the `seconds` of their steps, those of the `best` exactly.
    Costs of threads that wake each other and share caches cannot be measured beforehand. A part that grows with the
    number of groups goes to encoding, the rest to the time around backward."""
    took_s = np.array(seconds)
    groups = np.array([len(plan.groups) for plan in plans])
    # what a group costs beside its compressor, in the encoding
    if groups.max() - groups.min() >= FAR_APART:
        excess_s = took_s - [timeline(profile, plan, regime).step_s for plan in plans]
        group_s = theil_sen(groups, excess_s).per_unit
        dearer = (replace(candidate, encode=candidate.encode.plus(group_s)) for candidate in profile.candidates)
        profile = replace(profile, candidates=tuple(dearer))
    # the rest around backward
    optimizer_s = profile.optimizer_s + took_s[best] - timeline(profile, plans[best], regime).step_s
    forward_s = max(0.0, profile.forward_s + min(0.0, optimizer_s))
    return replace(profile, optimizer_s=max(0.0, optimizer_s), forward_s=forward_s)


def _alone(problem: Problem, regime: Regime, option: int) -> Solution:
    tried = [baselines.best_buckets(problem, regime, option), baselines.one_group(problem, regime, option)]
    return min(tried, key=lambda found: found.step_s)


def few_groups(plan: Plan, trained: Sequence[Slot]) -> Plan:
    """The plan, for these slots, in as few groups as can be, all complete when backward ends: so that backward is timed
    without the CPU time of encoding and the network."""
    ways = dict.fromkeys(replace(group, slots=()) for group in reversed(plan.groups))
    slots = {
        way: [slot for group in plan.groups if replace(group, slots=()) == way for slot in group.slots] for way in ways
    }
    return within_length(Plan(tuple(replace(way, slots=tuple(own)) for way, own in slots.items())), trained)


def is_dense(plan: Plan) -> bool:
    """Whether all its compressors are casts."""
    return all(group.compressor.is_cast for group in plan.groups)


def compressor_of(candidate: Way) -> Compressor:
    """The compressor of a candidate for the automatic plan."""
    return ways_of(candidate, 1)[0].compressor
