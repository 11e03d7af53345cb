"""Log messages of the automatic plan."""

from collections.abc import Sequence
from math import isfinite

from gradwire.controllers import Decision
from gradwire.plans import Plan
from gradwire.schedule import Profile, Solution
from gradwire.schedule.candidate_names import candidate_names
from gradwire.tuner.trials import Trials


def efficiencies(measured: Profile, allowed: Profile) -> str:
    """The efficiency of each candidate, and which are left out."""
    parts: list[str] = []
    for name, candidate in zip(candidate_names(measured.candidates), measured.candidates, strict=True):
        efficiency = f"{candidate.efficiency:.3f}" if candidate.efficiency else "0 (it harms training)"
        parts.append(f"{name} {efficiency}{'' if candidate in allowed.candidates else ', left out'}")
    return f"efficiency of a step: {'; '.join(parts)}"


def tried(phase: str, plans: Sequence[Plan]) -> str:
    """The plans that take turns."""
    return f"{phase}: {'; '.join(map(name, plans))}"


def round_of(trials: Trials) -> str:
    """Results of the plans that had a turn in the last round."""
    took = [plan for plan, seconds in enumerate(trials.rounds[-1]) if seconds is not None]
    return f"round {len(trials.rounds)}: {'; '.join(turn(trials, plan) for plan in took)}"


def turn(trials: Trials, plan: int) -> str:
    """Result of a plan's turns."""
    return f"{name(trials.plans[plan])}: {_rate(trials, plan)}"


def chosen(trials: Trials, predicted_s: float, dense_s: float) -> str:
    """The chosen plan, beside the others that were tried."""
    choice = trials.choice
    rivals = [plan for plan in trials.ran if plan != choice and not (trials.has_dense and plan == 0)]
    others = [f"{1e3 * trials.step_s(plan):.0f}" for plan in rivals]
    rest = f"; others took {', '.join(others)} ms" if others else ""
    dense = f"; dense took {1e3 * dense_s:.0f} ms" if isfinite(dense_s) else ""
    predicted = f"at first {1e3 * predicted_s:.0f} ms was predicted for the best"
    return f"{turn(trials, choice)} ({predicted}{rest}{dense}){_compared(trials)}"


def changed(now_s: float, expected_s: float) -> str:
    """That steps take another time than they did."""
    return f"steps take {1e3 * now_s:.0f} ms, not {1e3 * expected_s:.0f} ms any more: planning anew"


def _compared(trials: Trials) -> str:
    """The best plan's time beside that of the other one that is left, or of dense, as a clause; "" where it met neither
    in a round, such as dense that dropped out before it joined."""
    best = trials.best
    others = [plan for plan in [*trials.alive, *[0] * trials.has_dense] if plan != best and trials.met(plan, best)]
    if not others:
        return ""
    is_dense = trials.has_dense and others[0] == 0
    whose = "dense's time" if is_dense else f"the time of {name(trials.plans[others[0]])}"
    progress = "" if set(trials.efficiencies) == {1.0} else " for the same progress"
    ratio = trials.ratio(best, others[0])
    stays = "" if trials.choice == best else ", not clearly less: dense stays"
    return f"; {name(trials.plans[best])} takes {ratio.middle:.2f} of {whose}{progress} ({ratio.interval}){stays}"


def account(dense_s: float, tried: Sequence[Trials], decisions: Sequence[Decision]) -> str:
    """The time of a dense step, the result of each plan that was tried, and the decisions, a line each."""
    dense = [f"a dense step took {1e3 * dense_s:.0f} ms"] if isfinite(dense_s) else []
    timed = [(trials, plan) for trials in tried for plan in trials.ran]
    lines = [f"tried {turn(trials, plan)}" for trials, plan in timed]
    return "\n".join([*dense, *lines, *(f"step {each.step}: {each.decision}" for each in decisions)])


def proved(found: Solution) -> str:
    """The bound on better plans that the search has proved, as a clause."""
    if not isfinite(found.bound):
        return "nothing is proved of plans made rule by rule"
    most = max(100 * (found.bound - 1), 0.01)
    return f"by the profile no plan of these candidates is more than {most:.2g} % faster than the one searched"


def name(plan: Plan) -> str:
    """A plan in a few words."""
    return "DDP by itself" if plan.native else plan.describe()


def _rate(trials: Trials, plan: int) -> str:
    """Seconds of a step, efficiency, and progress per second; the first alone where all efficiencies are 1."""
    step = f"{1e3 * trials.step_s(plan):.0f} ms a step"
    if set(trials.efficiencies) == {1.0}:
        return step
    return f"{step}, efficiency {trials.efficiencies[plan]:.3f}: {trials.rate(plan):.3g} dense steps a second"
