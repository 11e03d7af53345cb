"""Steps with the plan that was chosen: whether they take as long as they did, and when to compare it again."""

from dataclasses import dataclass, field
from statistics import median

WINDOW, PATIENCE, DRIFT = 40, 2, 1.25
"""Steps of a window; so many windows in turn, whose median is so many times longer or shorter, are a change."""
LOOK_STEPS, LOOK_AFTER = 60, 3000
"""The most steps of a later comparison with another plan, and how many pass before the first: before each next one
twice as many as before the last, so that they are 2 % of all steps at most; on a GPU some more wait for recordings."""


@dataclass
class StepTimeMonitor:
    """Steps with a plan that was chosen."""

    expected_s: float = 0.0
    """Seconds of a step."""
    look_at: int = 0
    """The step of the next comparison with another plan; 0 where none is to come."""
    look_after: int = 0
    """Steps before that, from the last one."""
    seconds: list[float] = field(default_factory=list)
    """Of the steps in this window."""
    now_s: float = 0.0
    """The median step of the last window."""
    strange: int = 0
    """Windows in turn whose median was another."""
    confirmed: bool = False
    """A window was as expected."""

    def after(self, step: int, expected_s: float, close: bool) -> "StepTimeMonitor":
        """The monitor of a plan chosen now, which is compared once more with another one if that comes `close`."""
        wait = 2 * self.look_after or LOOK_AFTER
        return StepTimeMonitor(expected_s, step + wait if close else 0, wait if close else 0)

    def add(self, seconds: float, whole: bool) -> bool:
        """Counts a step, or the median of a `whole` window; True at the end of a window."""
        self.seconds.append(seconds)
        if len(self.seconds) < WINDOW and not whole:
            return False
        # a window is over: is its median another?
        self.now_s, self.seconds = median(self.seconds), []
        drift = max(self.now_s / self.expected_s, self.expected_s / self.now_s)
        self.strange = self.strange + 1 if drift > DRIFT else 0
        self.confirmed = self.confirmed or not self.strange
        # no window ever took as long as in the trials: these were measured wrong, and nothing has changed since
        if self.strange >= PATIENCE and not self.confirmed:
            self.expected_s = self.now_s
            self.strange = 0
            self.confirmed = True
        return True

    @property
    def has_changed(self) -> bool:
        """Whether steps have long taken another time."""
        return self.strange >= PATIENCE

    def is_due(self, step: int) -> bool:
        """Whether the plan is to be compared again."""
        return 0 < self.look_at <= step
