"""The scheduler's pure core: from a profile to the plan with the shortest step. No network, no clock, no printing."""

from gradwire.schedule import baselines
from gradwire.schedule.costs import Affine, CostTable, theil_sen
from gradwire.schedule.link_costs import over_link
from gradwire.schedule.problem import Option, Problem
from gradwire.schedule.profile import Objective, Profile
from gradwire.schedule.profiled import Candidate, SlotTime
from gradwire.schedule.progress import best_index, plan_efficiency, search_profile, search_progress
from gradwire.schedule.regimes import Regime, Worker
from gradwire.schedule.search import Solution, evaluate, search
from gradwire.schedule.timeline import Timeline, timeline

__all__ = [
    "Affine",
    "Candidate",
    "CostTable",
    "Objective",
    "Option",
    "Problem",
    "Profile",
    "Regime",
    "SlotTime",
    "Solution",
    "Timeline",
    "Worker",
    "baselines",
    "best_index",
    "evaluate",
    "over_link",
    "plan_efficiency",
    "search",
    "search_profile",
    "search_progress",
    "theil_sen",
    "timeline",
]
