"""The tuner: measures a job, tries plans while it trains, and keeps the one with the most progress."""

from gradwire.tuner.auto import CHOOSING_STEPS, Auto
from gradwire.tuner.profiler import profiler_for

__all__ = ["CHOOSING_STEPS", "Auto", "profiler_for"]
