"""Trials: plans take turns, their steps are timed, and the one with the most progress per second wins."""

import json
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, Self

from gradwire.controllers import Observation
from gradwire.plans import Plan
from gradwire.schedule import most

SETTLE, TRIED, ROUNDS = 1, 5, 4
"""Steps of a turn that do not count, and that do; rounds of turns at most."""
FAR, STILL_CLOSE = 1.5, 1.15
"""So far behind drops out after the first round, and after the second. A turn's median strays by a tenth, and by a half
where the machine does something else meanwhile."""


def turns_in(steps: int, delay: int) -> int:
    """The number of turns in so many steps, where decisions are in force `delay` steps later."""
    return steps // (SETTLE + TRIED + delay - 1)


def step_s(seen: Observation) -> float:
    """Seconds of a step, or of the median step where the framework reduced by itself."""
    return seen.seconds if seen.plan.native else float(seen.sums[0] / seen.sums[1])


class Tried(NamedTuple):
    """A plan's steps in a trial."""

    step_s: float
    """Of its fastest turn."""
    progress: float
    """Per second, over that of the plan that was chosen."""


@dataclass
class Trials:
    """Plans in turns, while there are turns left for two of them. Plans far behind drop out, as do the last where a
    round would have more turns than are left; the last one has won."""

    plans: list[Plan]
    efficiencies: list[float]
    """Of each plan's steps."""
    turns: int
    """Left for all of them."""
    seconds: list[list[float]] = field(default_factory=list)
    """The median steps of each plan's turns."""
    alive: list[int] = field(default_factory=list)
    """Indices of the plans that have not dropped out."""
    round: int = 0
    """Rounds that are over."""
    at: int = 0
    """Index in `alive` of the plan in force."""
    turn: list[float] = field(default_factory=list)
    """Seconds of the steps in this turn; of a native plan one number, their median."""

    def __post_init__(self) -> None:
        if not self.seconds:
            self.seconds = [[] for _ in self.plans]
            self.alive = list(range(len(self.plans)))

    @property
    def current(self) -> Plan:
        """The plan in force."""
        return self.plans[self.index]

    @property
    def index(self) -> int:
        """Index of the plan in force."""
        return self.alive[self.at]

    @property
    def done(self) -> bool:
        enough = self.round == ROUNDS or len(self.alive) == 1 or self.turns < len(self.alive)
        return self.round > 0 and self.at == 0 and enough

    @property
    def best(self) -> int:
        """Index of the plan with the most progress per second, of those that did not drop out."""
        return self.alive[
            most([self.rate(plan) for plan in self.alive], [self.efficiencies[plan] for plan in self.alive])
        ]

    def step_s(self, plan: int) -> float:
        """The seconds of a step in the plan's fastest turn: what else a machine does makes turns slower only."""
        return min(self.seconds[plan])

    def rate(self, plan: int) -> float:
        """Progress per second with the plan, in dense steps."""
        return self.efficiencies[plan] / self.step_s(plan)

    def add(self, seconds: float) -> bool:
        """Counts one more step of the plan in force; True when its turn is over."""
        self.turn.append(seconds)
        # plain DDP gives one median of its steps; plans settle first
        if self.current.native:
            self._pass_on(seconds)
        elif len(self.turn) == SETTLE + TRIED:
            self._pass_on(median(self.turn[SETTLE:]))
        return not self.turn

    def _pass_on(self, seconds: float) -> None:
        self.seconds[self.index].append(seconds)
        self.turn, self.turns, self.at = [], self.turns - 1, self.at + 1
        if self.at < len(self.alive):
            return
        # a round is over: drop the plans far behind
        self.at, self.round = 0, self.round + 1
        margin, best = FAR if self.round == 1 else STILL_CLOSE, self.rate(self.best)
        near = sorted((plan for plan in self.alive if margin * self.rate(plan) >= best), key=self.rate, reverse=True)
        self.alive = sorted(near[: self.turns] if self.turns > 1 else near)

    def beside(self, chosen: Plan) -> dict[Plan, "Tried"]:
        """The plans that ran, beside the chosen one, or the best where that did not run."""
        # plans that had a turn
        ran = [plan for plan, seconds in enumerate(self.seconds) if seconds]
        own = next((plan for plan in ran if self.plans[plan] == chosen), None)
        if not ran:
            return {}
        # progress over that of the chosen one
        rate = self.rate(self.best if own is None else own)
        return {self.plans[plan]: Tried(self.step_s(plan), self.rate(plan) / rate) for plan in ran}

    def to_json(self) -> str:
        return json.dumps(vars(self) | {"plans": [plan.to_json() for plan in self.plans]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        return cls(**data | {"plans": [Plan.from_json(plan) for plan in data["plans"]]})
