"""The scheduler's pure core: from a profile to the plan with the shortest step. No network, no clock, no printing."""

from gradwire.schedule.timeline import Span, Timeline

__all__ = ["Span", "Timeline"]
