"""What local steps cost: what parameters have moved is sent at once, every so many steps, and backward hides nothing.
A mean step is one inside a host and its share of a round: seconds / H.
"""

from dataclasses import replace

import numpy as np

from gradwire.schedule.baselines import best_buckets
from gradwire.schedule.profile import Profile
from gradwire.schedule.regimes import Regime
from gradwire.schedule.search import Found

SIZES = 16


def at_once(there: Profile, option: int, regime: Regime) -> Found:
    """How a candidate exchanges all slots when they are ready at the same time, in its best bucket size."""
    problem = there.problem()
    ready = replace(problem, ready_s=np.zeros(len(problem.ready_s)), around_s=0.0)
    return best_buckets(ready, regime, option, SIZES)
