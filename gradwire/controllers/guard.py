"""A guard for accuracy, which finds sudden rises of the loss or the residual."""

from dataclasses import dataclass
from math import hypot, isnan

LOSS_RISE = 0.2
"""A mean loss that is larger by so much of the absolute one of the window before is a sudden rise."""
RESIDUAL_RISE = 4.0
"""A residual so many times as large, over what is sent, is a sudden rise."""


@dataclass
class Guard:
    """Compares each window with the one before.

    Sudden is a mean loss that is larger by a fifth, and by more than 3 standard errors of the difference, and a
    residual 4 times as large over what is sent, at the same factor.
    """

    loss: float = float("nan")
    """The mean of the window before; NaN where there was none."""
    error: float = 0.0
    """Its standard error."""
    residual: float = float("nan")
    """Of the window before, over what was sent; NaN where there was none, or another factor."""

    def notice(self, loss: float, error: float, residual: float) -> str | None:
        """A sentence about a sudden rise in this window, or None. `residual` is relative to what is sent."""
        # replace the window before by this one
        before, self.loss = self.loss, loss
        noise, self.error = hypot(self.error, error), error
        left, self.residual = self.residual, residual
        if not isnan(before) and loss - before > max(LOSS_RISE * abs(before), 3 * noise):
            return f"the loss rose from {before:.4g} to {loss:.4g}"
        if not isnan(left) and residual > RESIDUAL_RISE * max(left, 1):
            return f"the residual rose from {left:.3g} to {residual:.3g} times what is sent"
        return None

    def changed(self) -> None:
        """Drops the residual's reference: another factor is in force, so it is expected to change."""
        self.residual = float("nan")
