"""The times at which local steps send a model's fragments, and use their means."""

from dataclasses import dataclass
from typing import ClassVar

from gradwire.options import Options


@dataclass(frozen=True)
class Schedule(Options):
    """The times of sending: fragment f of F is sent after (f + 1)·H/F inner steps, and every H steps from there; the
    next ones queue up behind it. Raises ValueError for numbers that do not fit together."""

    called: ClassVar[str] = "LocalSteps"

    inner_steps: int
    """H."""
    fragments: int
    delay: int = 0
    """Inner steps until a fragment's mean is used, before it is sent again."""
    mix: float | None = None
    """Parameters then become mix·own + (1 - mix)·anchor; without, they keep their steps since they were sent."""
    eager: bool = False
    """A fragment's mean is used when it is sent the next time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # fragments are sent at different steps of a round
        if self.inner_steps < self.fragments:
            raise ValueError(
                f"inner_steps={self.inner_steps} are fewer than the {self.fragments} fragments, which are sent one "
                f"at a time; use inner_steps={self.fragments} or more, or fewer fragments"
            )
        if not 0 <= self.delay <= self.inner_steps:
            raise ValueError(
                f"delay={self.delay} counts inner steps until a mean is used, which come before its fragment is sent "
                f"again; use 0 to {self.inner_steps}"
            )
        if self.mix is not None and not 0 <= self.mix < 1:
            raise ValueError(
                f"mix={self.mix} is no share of a replica's own steps, which is less than 1; use e.g. mix=0.5, or None"
            )
        if self.eager and (self.delay or self.mix is not None):
            raise ValueError("eager=True uses means a round later, and mixes nothing; leave out delay and mix")

    @property
    def keeps_sent(self) -> bool:
        """Whether parameters are needed later as they were sent."""
        return self.delay > 0 and self.mix is None

    @property
    def first_outer_step(self) -> int:
        """The inner step with which the first outer step of a fragment comes."""
        return self.inner_steps // self.fragments + self.delay

    def due(self, step: int) -> int | None:
        """The fragment to send after so many inner steps."""
        for fragment in range(self.fragments):
            first = (fragment + 1) * self.inner_steps // self.fragments
            if step >= first and (step - first) % self.inner_steps == 0:
                return fragment
        return None

    def times_sent(self, step: int) -> int:
        """How often the fragment that is sent after so many inner steps was sent before."""
        return (step - 1) // self.inner_steps
