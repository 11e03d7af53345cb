"""What the automatic plan says of what it has learnt."""

from collections.abc import Sequence
from math import isfinite

from gradwire.plans import Plan
from gradwire.schedule import Profile
from gradwire.schedule.simulate import names
from gradwire.tuner.trials import Trials


def efficiencies(measured: Profile, allowed: Profile) -> str:
    """What each candidate's steps are worth, and which are left out."""
    said: list[str] = []
    for name, candidate in zip(names(measured.candidates), measured.candidates, strict=True):
        efficiency = f"{candidate.efficiency:.3f}" if candidate.efficiency else "nothing (it harms training)"
        said.append(f"{name} {efficiency}{'' if candidate in allowed.candidates else ', left out'}")
    return f"a step is worth so much of a dense one: {'; '.join(said)}"


def tried(phase: str, plans: Sequence[Plan]) -> str:
    """Who takes turns now."""
    return f"{phase}: {'; '.join(map(name, plans))}"


def turn(trials: Trials, plan: int) -> str:
    """What a turn has shown."""
    return f"{name(trials.plans[plan])}: {_rate(trials, plan)}"


def chosen(trials: Trials, plan: Plan, predicted_s: float, dense_s: float) -> str:
    """What was settled on, beside what else was tried."""
    best = trials.plans.index(plan)
    others = [f"{1e3 * trials.step_s(index):.0f}" for index in range(len(trials.plans)) if index != best]
    rest = f"; others took {', '.join(others)} ms" if others else ""
    dense = f"; dense took {1e3 * dense_s:.0f} ms" if isfinite(dense_s) else ""
    predicted = f"at first {1e3 * predicted_s:.0f} ms was predicted for the best"
    return f"{name(plan)}: {_rate(trials, best)} ({predicted}{rest}{dense})"


def name(plan: Plan) -> str:
    """A plan in a few words."""
    return "DDP by itself" if plan.native else plan.describe()


def _rate(trials: Trials, plan: int) -> str:
    """Seconds, worth, and progress per second."""
    step = f"{1e3 * trials.step_s(plan):.0f} ms a step, efficiency {trials.efficiencies[plan]:.3f} of a dense one"
    return f"{step}: {trials.rate(plan):.3g} dense steps a second"
