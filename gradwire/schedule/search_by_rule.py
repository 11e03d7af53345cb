"""The search under rules by layer: each rule's slots by themselves, with its candidates."""

from gradwire.rules import joined
from gradwire.schedule.profile import Profile
from gradwire.schedule.progress import search_progress
from gradwire.schedule.regimes import Regime
from gradwire.schedule.search import Solution, evaluate


def search_profile(profile: Profile, regime: Regime, eps: float = 0.0) -> Solution:
    """The plan with the most progress per second, to within a factor of 1 + eps. With several rules it is made of the
    best plan for each rule's slots, were they alone, and no bound is proven."""
    parts = profile.by_rule()
    if parts == [profile]:
        return search_progress(profile.problem(), regime, eps)
    plans = [part.plan(search_progress(part.problem(), regime, eps).groups) for part in parts]
    return evaluate(profile.problem(), profile.choices(joined(plans, profile.slots)), regime)
