"""ScaDLES: groups are compressed where that loses little energy, else dense."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.controllers.controller import Controller, Decision, Observation, StepView
from gradwire.controllers.gravac import GraVAC
from gradwire.plans import Plan
from gradwire.slots import Slot


class _OneFactor(GraVAC):
    """GraVAC, as ScaDLES's errors call it."""

    called = "ScaDLES"
    _settings = "factor"


@dataclass
class ScaDLES(Controller):
    """GraVAC with one factor: each group is compressed where that loses little energy of gradient and residual, else
    sent whole (Tyagi and Swany, IEEE BigData 2022). It takes no loss: there is no other factor to step back to."""

    factor: float = 10
    """How many times fewer elements are sent."""
    loss: float = 0.3
    """The largest part of the energy that may stay behind, in [0, 1]."""
    window: int = 100
    """Every so many steps what was sent is noted in `decisions`."""
    numbers: ClassVar[int] = GraVAC.numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor < 1 or not 0 <= self.loss <= 1:
            raise ValueError(
                f"factor={self.factor}, loss={self.loss}: factors are 1 or more, losses shares; "
                "use e.g. ScaDLES(factor=10, loss=0.3)"
            )
        self._inner = _OneFactor(self.factor, self.factor, self.window, gain="energy", min_gain=1 - self.loss)

    @property
    def decisions(self) -> list[Decision]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._inner.decisions

    def meet(self, slots: Sequence[Slot], replicas: int) -> None:
        super().meet(slots, replicas)
        self._inner.meet(slots, replicas)

    def check(self, plan: Plan) -> None:
        self._inner.check(plan)

    def begin(self, plan: Plan) -> Plan:
        return self._inner.begin(plan)

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        self._inner.observe(seen, numbers)

    def decide(self, seen: Observation) -> Plan | None:
        return self._inner.decide(seen)

    def state_dict(self) -> dict[str, Tensor]:
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._inner.load_state_dict(state)
