"""Trials: plans take turns, their steps are timed, and who makes the most progress per second wins."""

import json
from dataclasses import dataclass, field
from statistics import median
from typing import Self

from gradwire.plans import Plan
from gradwire.schedule import most

SETTLE, TRIED, ROUNDS = 2, 5, 3
STILL_CLOSE = 1.1
TURN_STEPS = SETTLE + TRIED + 3
"""Steps that a turn takes, those included that pass until a decision is in force."""


@dataclass
class Trials:
    """`plans`, whose steps are worth `worths` dense ones, in turns, for so many `rounds`; with `drops`, who falls far
    behind drops out, and one that is left alone has won. `seconds` are those of each plan's steps; a native plan's turn
    gives one number, their median."""

    plans: list[Plan]
    worths: list[float]
    rounds: int = ROUNDS
    drops: bool = True
    seconds: list[list[float]] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    round: int = 0
    at: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        if not self.seconds:
            self.seconds = [[] for _ in self.plans]
            self.alive = list(range(len(self.plans)))

    @property
    def current(self) -> Plan:
        """Whose turn it is."""
        return self.plans[self.index]

    @property
    def index(self) -> int:
        """Which plan's turn it is."""
        return self.alive[self.at]

    @property
    def done(self) -> bool:
        """Whether all turns are over."""
        return self.round == self.rounds or (self.drops and self.round > 0 and len(self.alive) == 1)

    @property
    def best(self) -> int:
        """Of those that ran to the end, who makes the most progress per second."""
        return self.alive[most([self.rate(plan) for plan in self.alive], [self.worths[plan] for plan in self.alive])]

    def rate(self, plan: int) -> float:
        """How many dense steps' progress a second with the plan has made."""
        return self.worths[plan] / median(self.seconds[plan])

    def add(self, seconds: float) -> bool:
        """One more step of the current plan; whether its turn is over."""
        self.steps += 1
        if self.steps <= SETTLE and not self.current.native:
            return False
        self.seconds[self.index].append(seconds)
        if self.steps < SETTLE + TRIED and not self.current.native:
            return False
        self._pass_on()
        return True

    def _pass_on(self) -> None:
        self.steps, self.at = 0, self.at + 1
        if self.at < len(self.alive):
            return
        self.at, self.round = 0, self.round + 1
        if self.drops:
            best = self.rate(self.best)
            self.alive = [plan for plan in self.alive if STILL_CLOSE * self.rate(plan) >= best]

    def to_json(self) -> str:
        """As text; `from_json` reads it back."""
        return json.dumps(vars(self) | {"plans": [plan.to_json() for plan in self.plans]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        data = json.loads(text)
        return cls(**data | {"plans": [Plan.from_json(plan) for plan in data["plans"]]})
