"""Where a rank is in its steps: said to the others when a job ends, and looked at only then."""

from typing import NamedTuple

BETWEEN = "between steps"


class Place(NamedTuple):
    """A rank's `step`, counted from 0: the one that it is in, or that it would begin next; what it is `doing`, in
    words; and for how long it has exchanged gradients of that step, 0 where none of it has begun."""

    step: int = 0
    doing: str = BETWEEN
    exchanged_s: float = 0.0
