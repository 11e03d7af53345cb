"""The phases in which a plan is chosen, and how many steps they take."""

from typing import Literal

WARM, TIMED, TRACED = 2, 6, 6
"""Dense steps that warm up, dense steps that are timed, and steps that are traced."""
CHOOSING_STEPS, BEFORE_TRIALS = 150, WARM + TIMED + TRACED + 8
"""The most steps that choosing takes; the steps before the trials."""

Phase = Literal["resting", "begin", "dense", "profile", "first trials", "more trials", "watch", "looking again"]
COMPARING: tuple[Phase, ...] = ("first trials", "more trials", "looking again")
"""The phases in which steps count for the plan that has its turn."""


def status(phase: Phase) -> str:
    """What goes on in a phase, in a few words; "" where a plan is chosen, or a user has DDP reduce."""
    match phase:
        case "watch" | "resting":
            return ""
        case "looking again":
            return "comparing its plan with another again"
        case _:
            return f"choosing a plan ({phase})"
