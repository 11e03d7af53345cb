"""The phases in which a plan is chosen, and how many steps they take."""

from typing import Literal

WARM, TIMED, TRACED = 2, 6, 6
"""Dense steps before those that are timed, those, and the steps that are traced."""
CHOOSING_STEPS, BEFORE_TRIALS = 150, WARM + TIMED + TRACED + 8
"""The most steps that choosing takes; the steps before the trials."""

Phase = Literal["begin", "dense", "profile", "first trials", "more trials", "watch", "looking again"]


def status(phase: Phase) -> str:
    """What goes on in a phase, in a few words; "" where a plan is chosen and watched."""
    match phase:
        case "watch":
            return ""
        case "looking again":
            return "comparing its plan with another again"
        case _:
            return f"choosing a plan ({phase})"
