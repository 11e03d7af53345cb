"""The time of a step, as a controller has it, and the median of dense ones."""

from statistics import median

from gradwire.controllers import Observation
from gradwire.tuner.phases import TIMED, WARM

MOST_UNRECORDED = 12
"""Steps for which a plan's turn waits at most until the plan is recorded, as it then runs: mostly 6, for DDP's new
buckets stay from the third on, and then each kind of step has to come; some jobs record nothing."""


def step_s(seen: Observation) -> float:
    """Seconds of a step, or of the median step where the framework reduced by itself."""
    return seen.seconds if seen.plan.native else float(seen.sums[0] / seen.sums[1])


def is_unrecorded(seen: Observation) -> bool:
    """Whether the step took longer on some rank than later ones will, for groups are still to be recorded."""
    return bool(seen.sums[2:].any())


class DenseTimes:
    """Times of dense steps, until there are enough."""

    def __init__(self) -> None:
        self._seconds = list[float]()
        self._unrecorded = 0

    def add(self, seen: Observation) -> float | None:
        """Adds a step, or the median of all that the framework reduced; returns the median once there are enough."""
        if is_unrecorded(seen) and self._unrecorded < MOST_UNRECORDED:  # it is timed as it will run
            self._unrecorded += 1
            return None
        self._seconds.append(step_s(seen))
        if not seen.plan.native and len(self._seconds) < WARM + TIMED:
            return None
        return median(self._seconds[WARM:] or self._seconds)
