"""Trials: plans take turns in rounds, plans far behind drop out, and the last two go on until one is clearly better."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from math import log
from statistics import median
from typing import NamedTuple, Self

from gradwire.controllers import Observation
from gradwire.controllers.requests import Change, NativeRequest
from gradwire.plans import Group, Plan
from gradwire.schedule import best_index
from gradwire.tuner.pairs import Ratio
from gradwire.tuner.step_times import MOST_UNRECORDED

SETTLE, TRIED = 1, 3
"""Steps after a change of plan that do not count, and the steps of a turn that do."""
FAR, STILL_CLOSE = 1.5, 1.15
"""A plan drops out if in each round so far it took more than this many times as long as the best: FAR after the first
round, STILL_CLOSE after a later one; for dense FAR, from the second round on. A turn's median varies by a tenth, and by
a half where the machine does something else meanwhile."""
KEPT = (3, 2, 2, 1)
"""Plans beside dense that are left after each of the first rounds."""
CLEARLY = 0.97
"""A plan that takes more of dense's time than this is not worth its thread."""
LEAST_EFFICIENCY = 1e-9
"""Of plans that harm training, which rules can ask for."""


def change_to(plan: Plan, seen: Observation, native_steps: int, settle: int = 0) -> Change | None:
    """The change that puts a plan in force, a native one for so many steps, the first of which do not count; None where
    it is."""
    if plan.native:
        return NativeRequest(native_steps, settle)
    return None if plan == seen.plan else plan


class Tried(NamedTuple):
    """A plan's steps in a trial."""

    step_s: float
    """See `Trials.step_s`."""
    progress: float
    """Per second, over that of the plan that was chosen."""


@dataclass
class Trials:
    """Plans in turns, forwards in one round and backwards in the next, so that a trend cancels out. Plans are compared
    by the rounds in which both ran. Those far behind drop out, until two are left; these go on, in pairs of turns,
    until the interval of their ratio is clear, or no steps are left."""

    plans: list[Plan]
    """The first is dense, where that may be chosen."""
    efficiencies: list[float]
    """Of each plan's steps."""
    has_dense: bool
    steps: int
    """Left for all turns."""
    delay: int
    """Steps from a decision to the first step with the new plan, at most."""
    rounds: list[list[float | None]] = field(default_factory=list)
    """The median step of each plan's turn in each round that is over; None of a plan that had none."""
    alive: list[int] = field(default_factory=list)
    """Indices of the plans that have not dropped out."""
    medians: list[float] = field(default_factory=list)
    """The median step of each turn in this round."""
    turn: list[float] = field(default_factory=list)
    """Seconds of the steps in this turn; of a native plan one number, their median."""
    before: int = -1
    """Index of the plan in force before this turn."""
    unrecorded: int = 0
    """Steps of this turn that did not count, for its plan was still to be recorded; they are not of `steps`."""
    unrecordable: list[int] = field(default_factory=list)
    """Indices of the plans that a turn has waited for in vain; their later turns do not wait."""

    def __post_init__(self) -> None:
        self.alive = self.alive or list(range(len(self.plans)))
        self.efficiencies = [max(LEAST_EFFICIENCY, each) for each in self.efficiencies]

    @classmethod
    def none(cls) -> Self:
        """Trials of no plan."""
        return cls([], [], has_dense=False, steps=0, delay=0)

    @property
    def order(self) -> list[int]:
        """Indices of the plans as they take turns in this round."""
        return self.alive[::-1] if len(self.rounds) % 2 else self.alive

    @property
    def index(self) -> int:
        """Index of the plan in force."""
        return self.order[len(self.medians)]

    @property
    def current(self) -> Plan:
        """The plan in force."""
        return self.plans[self.index]

    @property
    def settle(self) -> int:
        """Steps of this turn with its plan in force that do not count."""
        return SETTLE * (self.index != self.before)

    @property
    def turn_steps(self) -> int:
        """Steps of this turn with its plan in force."""
        return TRIED + self.settle

    @property
    def between_rounds(self) -> bool:
        return not (self.medians or self.turn)

    @property
    def done(self) -> bool:
        """Whether a round is over, and no other follows."""
        if not self.between_rounds or not self.rounds:
            return False
        return len(self.alive) == 1 or self.is_clear or self.steps < self._round_steps

    @property
    def is_clear(self) -> bool:
        """Whether one of the last two is clearly better."""
        if len(self.alive) != 2 or not self.met(*self.alive):
            return False
        first, second = self.alive
        ratio = self.ratio(second, first)
        return self._is_better(ratio) or ratio.low > (CLEARLY if self.dense_is_left else 1)

    @property
    def challenger(self) -> int | None:
        """Index of the plan to compare with the chosen one once more: dense, else the nearest, of the plans that are
        not clearly 3 % worse; None where there is none."""
        # plans that met the chosen one, and are not clearly worse
        chosen = self.choice
        ratios = {plan: self.ratio(plan, chosen) for plan in self.ran if plan != chosen and self.met(plan, chosen)}
        # dense first, else the nearest
        near = [plan for plan, ratio in ratios.items() if CLEARLY * ratio.low <= 1 and ratio.middle <= FAR]
        return 0 if self.has_dense and 0 in near else min(near, key=lambda plan: ratios[plan].middle, default=None)

    @property
    def dense_is_left(self) -> bool:
        return self.has_dense and self.alive[0] == 0

    @property
    def best(self) -> int:
        """Index of the plan that is left with the most progress per second, dense only where no other is left."""
        ran = [plan for plan in self.alive if self.seconds(plan)]
        left = ran[1:] if self.dense_is_left and len(ran) > 1 else ran
        return left[best_index([self.rate(plan) for plan in left], [self.efficiencies[plan] for plan in left])]

    @property
    def choice(self) -> int:
        """Index of the plan to choose: the best, where dense is not left or is clearly slower."""
        return self.best if not self.dense_is_left or self._is_better(self.ratio(self.best, 0)) else 0

    def met(self, plan: int, other: int) -> bool:
        """Whether both had a turn in some round."""
        return bool(self._logs(plan, other))

    def ratio(self, plan: int, other: int) -> Ratio:
        """How many times as long a plan takes as another that it met, for a dense step's progress."""
        return Ratio.of(self._logs(plan, other))

    def step_s(self, plan: int) -> float:
        """The seconds of a step with a plan that ran: those of the first plan that is left, times the ratio of the two.
        Plans ran in different rounds, and what else the machine did then made all of them slower."""
        first = self.alive[0]
        if not (logs := self._logs(plan, first)):
            return median(self.seconds(plan))
        return median(self.seconds(first)) / self.efficiencies[first] * Ratio.of(logs).middle * self.efficiencies[plan]

    def seconds(self, plan: int) -> list[float]:
        """The median steps of a plan's turns."""
        return [own for each in self.rounds if (own := each[plan]) is not None]

    def rate(self, plan: int) -> float:
        """Progress per second with the plan, in dense steps."""
        return self.efficiencies[plan] / self.step_s(plan)

    @property
    def ran(self) -> list[int]:
        """Indices of the plans that had a turn."""
        return [plan for plan in range(len(self.plans)) if self.seconds(plan)]

    def in_ways(self, ways: Collection[Group]) -> tuple[list[Plan], list[float], int]:
        """The plans that ran and send in these ways alone, the seconds of their steps, and the index of the best."""
        # the ways that each plan sends in
        sends = {plan: {replace(group, slots=()) for group in self.plans[plan].groups} for plan in self.ran}
        ran = [plan for plan in self.ran if sends[plan] and sends[plan] <= set(ways)]
        best = max(ran, key=self.rate)
        return [self.plans[plan] for plan in ran], [self.step_s(plan) for plan in ran], ran.index(best)

    def add(self, seconds: float, unrecorded: bool = False) -> bool:
        """Counts one more step of the plan in force, unless it is `unrecorded`; True when its turn is over."""
        # a plan is timed as it will run
        if unrecorded and self.index not in self.unrecordable:
            self.unrecorded += 1
            if self.unrecorded == MOST_UNRECORDED:
                self.unrecordable.append(self.index)
            return False
        self.turn.append(seconds)
        # plain DDP gives one median of its steps; plans settle first
        if self.current.native or len(self.turn) == self.turn_steps:
            self._pass_on(median(self.turn[-TRIED:]))
        return not self.turn

    def join(self, plan: Plan, efficiency: float) -> None:
        """Has one more plan take turns, beside the best and dense alone, between two rounds."""
        # the best so far and dense stay beside it
        self.alive = [*dict.fromkeys([*self.alive[: self.dense_is_left], self.best]), len(self.plans)]
        self.plans.append(plan)
        self.efficiencies.append(max(LEAST_EFFICIENCY, efficiency))
        # it had no turn in earlier rounds
        self.rounds = [[*each, None] for each in self.rounds]

    def go_on(self, steps: int) -> None:
        """Begins further pairs of the chosen plan, which is in force, and its challenger, for so many steps."""
        assert self.challenger is not None
        self.steps = steps
        self.before = self.choice
        self.alive = sorted([self.choice, self.challenger])

    def relative_to(self, chosen: Plan) -> dict[Plan, Tried]:
        """The plans that ran, beside the chosen one, or the best where that did not run."""
        if not self.ran:
            return {}
        own = next((plan for plan in self.ran if self.plans[plan] == chosen), self.best)
        return {self.plans[plan]: Tried(self.step_s(plan), self.rate(plan) / self.rate(own)) for plan in self.ran}

    def to_json(self) -> str:
        return json.dumps(vars(self) | {"plans": [plan.to_json() for plan in self.plans]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        return cls(**data | {"plans": [Plan.from_json(plan) for plan in data["plans"]]})

    def _pass_on(self, seconds: float) -> None:
        # the turn is over: its steps are spent
        self.steps -= TRIED + self._change_steps * (self.index != self.before)
        self.before = self.index
        self.turn = []
        self.unrecorded = 0
        self.medians = [*self.medians, seconds]
        if len(self.medians) < len(self.alive):
            return
        # a round is over
        took = dict(zip(self.order, self.medians, strict=True))
        self.rounds.append([took.get(plan) for plan in range(len(self.plans))])
        self.medians = []
        # the first rounds drop plans
        if len(self.rounds) <= len(KEPT):
            self._drop(KEPT[len(self.rounds) - 1])

    def _drop(self, kept: int) -> None:
        """Drops plans that were far behind the best in every round, dense not before the second; and of the others all
        but the `kept` best, so that two are left."""
        # how far each plan was behind the best, in the round in which it was nearest
        first, best = len(self.rounds) == 1, max(self.alive, key=self.rate)
        behind = {plan: min(self._logs(plan, best)) for plan in self.alive}
        # dense stays for a round, and then where it is not far behind
        dense = [0] if self.dense_is_left and (first or behind[0] <= log(FAR)) else []
        margin = log(FAR if first else STILL_CLOSE)
        # the others stay where they are near, and only the best of them
        near = [plan for plan in self.alive[self.dense_is_left :] if behind[plan] <= margin]
        others = sorted(near, key=self.rate, reverse=True)
        self.alive = [*dense, *sorted(others[: max(kept, 2 - len(dense))])]

    @property
    def _change_steps(self) -> int:
        """Steps that pass, when another plan is to be in force, until one counts."""
        return SETTLE + self.delay - 1

    @property
    def _round_steps(self) -> int:
        """Steps of the next round."""
        return len(self.alive) * (TRIED + self._change_steps) - self._change_steps * (self.before == self.order[0])

    def _is_better(self, ratio: Ratio) -> bool:
        """Whether a plan is clearly better than another, and worth its thread where that is dense."""
        return ratio.high < 1 and (ratio.middle < CLEARLY or not self.dense_is_left)

    def _logs(self, plan: int, other: int) -> list[float]:
        """Logarithms of how many times as long a plan takes as another for a dense step's progress, by round."""
        # rounds in which both had a turn
        pairs = [(each[plan], each[other]) for each in self.rounds]
        ratios = [own / its for own, its in pairs if own is not None and its is not None]
        return [log(each * self.efficiencies[other] / self.efficiencies[plan]) for each in ratios]
