"""The tuner: measures a job, tries plans while it trains, and keeps the one with the most progress.

    begin → dense → profile → first trials → more trials → watch ⇄ looking again, and from there to dense or profile;
    resting where a user has DDP reduce, and from there to begin

Every rank goes through these phases by the same sums, on its worker; what rank 0 decides in one counts on all of them,
in force from the same step on (`gradwire.runtime.plan.controller_runner`). In profiling all ranks exchange messages;
all else here is arithmetic of one.
"""

from gradwire.tuner.auto import Auto
from gradwire.tuner.phases import CHOOSING_STEPS
from gradwire.tuner.profiler import profiler_for

__all__ = ["CHOOSING_STEPS", "Auto", "profiler_for"]
