"""The scheduler's pure core: from a profile to the plan with the shortest step. No network, no clock, no printing.

profile, profiled, costs, sent_bytes   what was measured: slots, candidates, the network
cluster, link_costs, simulate          the same job on other ranks, hosts and links
problem                                the search's input: slots in order, options, and what a group is
regimes, work                          how long a step with some groups takes
search; bounds, game, edges, labels    the plan with the shortest step
progress                               the plan with the most progress per second
baselines, timeline                    plans by a rule; a step's spans of time
candidate_names                        how reports name ways to send
"""

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
