"""The scheduler's pure core: from a profile to the plan with the shortest step. No network, no clock, no printing."""

from gradwire.schedule import baselines
from gradwire.schedule.costs import Affine, Fit, Table, theil_sen
from gradwire.schedule.problem import Choice, Option, Problem
from gradwire.schedule.profile import Candidate, Profile, SlotTime, over_link
from gradwire.schedule.regimes import Regime, Worker
from gradwire.schedule.search import Found, evaluate, search
from gradwire.schedule.timeline import Span, Timeline, timeline

__all__ = [
    "Affine", "Candidate", "Choice", "Fit", "Found", "Option", "Problem", "Profile",
    "Regime", "SlotTime", "Span", "Table", "Timeline", "Worker", "baselines", "evaluate", "over_link",
    "search", "theil_sen", "timeline",
]  # fmt: skip
