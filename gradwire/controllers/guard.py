"""A guard for accuracy: sudden rises of the loss or the residual."""

from dataclasses import dataclass
from math import hypot, isnan

LOSS_RISE = 1.2
RESIDUAL_RISE = 4.0


@dataclass
class Guard:
    """Compares each window with the last; NaN where there is none.

    Sudden is a mean loss 1.2 times that of the window before, by more than 3 standard errors of their difference, and a
    residual 4 times as large against what is sent, at the same factor.
    """

    loss: float = float("nan")
    error: float = 0.0
    residual: float = float("nan")

    def notice(self, loss: float, error: float, residual: float) -> str | None:
        """A sentence about a sudden rise, or None. `residual` is relative to what is sent."""
        before, self.loss = self.loss, loss
        noise, self.error = hypot(self.error, error), error
        left, self.residual = self.residual, residual
        if not isnan(before) and loss > max(LOSS_RISE * before, before + 3 * noise):
            return f"the loss rose from {before:.4g} to {loss:.4g}"
        if not isnan(left) and residual > RESIDUAL_RISE * max(left, 1):
            return f"the residual rose from {left:.3g} to {residual:.3g} times what is sent"
        return None

    def changed(self) -> None:
        """Another factor is in force: the residual is expected to change."""
        self.residual = float("nan")
