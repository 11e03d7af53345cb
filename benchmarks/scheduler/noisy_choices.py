"""How often Auto chooses a plan that is more than 5 % slower than the best one, on machines that disturb its trials.

    python benchmarks/scheduler/noisy_choices.py   # three minutes, under any load: time is simulated

The plans of a cell are DDP and the five fastest candidates of a measured one (benchmarks/results/choices.json), whose
medians are taken for the truth. Steps vary as `Noise` says. Auto itself decides, without learning; beside it what it
did before plans were compared in pairs: the fastest turn of five steps wins, and dense stays where the best
is not 3 % faster. Later comparisons are the three that a job makes within 21,000 steps. In one more cell all plans are
slower than dense: there the question is how often it is left.

Writes benchmarks/results/noisy_choices.json and prints a Markdown table.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

sys.path.append(str(Path(__file__).parents[2]))

import torch

import gradwire as gw
from benchmarks.shared.provenance import load, save
from benchmarks.shared.tables import markdown
from gradwire.controllers import Observation
from gradwire.controllers.requests import Change, NativeRequest
from gradwire.plans import NATIVE, Group, Plan
from gradwire.tuner.watch import WINDOW

SEEDS, DENSE, LOOKS = 50, "ddp", 3
SLOWER = (0.02, 0.0205, 0.021, 0.021, 0.0215, 0.022)
"""Seconds of DDP, and of plans that are all slower, by 2.5 to 10 %."""
DELAY = 2
"""Steps from a decision to the first step with another plan, on a CPU."""
PLANS = (NATIVE, *(Plan((Group((f"{index}",), gw.BF16(), gw.NoMemory(), gw.AllReduce()),)) for index in range(5)))


class Noise(NamedTuple):
    """What a machine does to steps, beside 4 % that are independent and 6 % that last some steps."""

    slow_every_s: float = 5.0
    """Mean seconds between two times at which all steps are slower."""
    slow_s: tuple[float, float] = (0.5, 1.5)
    """How long, from and to."""
    slow: float = 1.45
    """By what factor."""
    trend: float = 0.0
    """Growth of steps per step."""
    heavy: float = 0.06
    """Share of steps that take at least 1.3 times as long, by Pareto's law."""


NOISES = {
    "slow seconds": Noise(),
    "and a trend of 1 % a turn": Noise(trend=0.002),
    "more slow seconds": Noise(slow_every_s=1.5),
    "short and slower": Noise(slow_every_s=1.0, slow_s=(0.1, 0.3), slow=2.0),
}


class Machine:
    """A clock whose steps vary."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self._noise, self._random = noise, random.Random(seed)
        self._now = self._slow_until = self._lasting = 0.0
        self._grown = 1.0
        self.rest()

    def rest(self) -> None:
        """Lets a long time pass, in which a trend ends."""
        self._grown, self._slow_from = 1.0, self._now + self._random.expovariate(1 / self._noise.slow_every_s)
        self._slow_until = self._slow_from + self._random.uniform(*self._noise.slow_s)

    def step(self, true_s: float) -> float:
        """The seconds of a step that takes `true_s` undisturbed."""
        noise, draw = self._noise, self._random
        self._lasting = 0.8 * self._lasting + draw.gauss(0, 0.036)
        seconds = true_s * self._grown * exp(self._lasting + draw.gauss(0, 0.04))
        self._grown *= 1 + noise.trend
        if draw.random() < noise.heavy:
            seconds *= 1 + 0.3 * draw.paretovariate(1.5)
        if self._now > self._slow_until:
            self._slow_from = self._now + draw.expovariate(1 / noise.slow_every_s)
            self._slow_until = self._slow_from + draw.uniform(*noise.slow_s)
        if self._now >= self._slow_from:
            seconds *= noise.slow
        self._now += seconds
        return seconds


class Trying(gw.Auto):
    """Auto from its trials on, whose candidates' efficiencies are 1 and who learns of no other plan."""

    def begin_trials(self, seen: Observation, plans: Sequence[Plan]) -> Change | None:
        self.measured = cast(Any, SimpleNamespace(objective=self.objective))
        return self._begin_trials(seen, list(plans))

    def _learn(self, seen: Observation) -> None:
        self._phase = "more trials"


class PlayedJob:
    """Auto's steps, where plan i of `PLANS` takes `true_s[i]`."""

    def __init__(self, machine: Machine, true_s: Sequence[float], order: Sequence[int]) -> None:
        self.machine, self._true_s, self.step, self._plan = machine, true_s, 0, PLANS[0]
        self._seconds: list[float] = []
        self._native = NativeRequest(1)
        self._decided: Change | None = None
        self.auto = Trying([gw.FP32()], objective="step")
        self._apply(self.auto.begin_trials(self._seen(0.0, DELAY), [PLANS[index] for index in order]))

    @property
    def chosen(self) -> int:
        return PLANS.index(self._plan)

    def choose(self) -> int:
        """Steps until Auto has chosen; returns their number."""
        while not self.auto.chosen or self.auto.status or self._decided:
            self.one_step()
        return self.step

    def look_again(self) -> None:
        """Goes on until Auto has compared its plan with another again, if it wants to."""
        if self.begin_to_look():
            self.choose()

    def begin_to_look(self) -> bool:
        """Goes on until Auto begins to compare its plan with another again; False where it does not want to."""
        if not (due := self.auto._watch.look_at):
            return False
        self.machine.rest()
        self.step = due - WINDOW
        while not self.auto.status:
            self.one_step()
        return True

    def one_step(self) -> None:
        """A step, and what Auto decides after it."""
        self.step += 1
        seconds = self.machine.step(self._true_s[self.chosen])
        if self._plan.native:
            self._seconds.append(seconds)
            if len(self._seconds) == self._native.steps:
                seconds, self._seconds = median(self._seconds[self._native.settle :]), []
                self._apply(self.auto.decide(self._seen(seconds, 1)))
        elif self._decided:
            self._apply(self._decided)
        else:
            self._decided = self.auto.decide(self._seen(seconds, DELAY))

    def _seen(self, seconds: float, delay: int) -> Observation:
        sums = torch.tensor([seconds, 1.0], dtype=torch.float64)
        own = seconds if self._plan.native else 0.0
        return Observation(self.step, self.step + delay, self._plan, (), 1, 2, 2, sums, True, own)

    def _apply(self, change: Change | None) -> None:
        self._decided = None
        match change:
            case NativeRequest():
                self._plan, self._native = NATIVE, change
            case Plan():
                self._plan = change
            case _:
                pass


def by_fastest_turn(machine: Machine, true_s: Sequence[float], order: Sequence[int]) -> int:
    """The choice before plans were compared in pairs: 18 turns of a step that does not count and five that do."""
    left = 18

    def turn(plan: int, before: int) -> float:
        for running in (before, plan):
            machine.step(true_s[running])
        return median(machine.step(true_s[plan]) for _ in range(5))

    def best_of(plans: Sequence[int], turns: int) -> tuple[int, dict[int, float], int]:
        alive, fastest, before = list(plans), dict.fromkeys(plans, float("inf")), 0
        for margin in (1.5, 1.15, 1.15, 1.15):
            for plan in alive:
                fastest[plan], before = min(fastest[plan], turn(plan, before)), plan
            turns -= len(alive)
            best = min(alive, key=fastest.__getitem__)
            near = sorted((p for p in alive if fastest[p] <= margin * fastest[best]), key=fastest.__getitem__)
            alive = [plan for plan in alive if plan in near[: max(turns, 1) if turns != 1 else None]]
            if len(alive) == 1 or turns < len(alive):
                break
        return min(alive, key=fastest.__getitem__), fastest, turns

    best, _, turns = best_of(order, left - 4)
    _, fastest, _ = best_of([0, best], turns + 4)
    return best if fastest[best] < 0.97 * fastest[0] else 0


def truths() -> list[list[float]]:
    """The seconds of DDP and of the five fastest candidates of each measured cell of two ranks."""
    cells = [row["found"]["s"] for row in load("choices")["rows"] if row["ranks"] == 2]
    return [[own[DENSE], *sorted(s for name, s in own.items() if name not in (DENSE, "auto"))[:5]] for own in cells]


def shuffled(seed: int) -> list[int]:
    """The plans beside dense, as a prediction might order them."""
    return random.Random(seed).sample(range(1, len(PLANS)), len(PLANS) - 1)


def chosen_by_pairs(noise: Noise, true_s: Sequence[float], seed: int, looks: int = 0) -> int:
    job = PlayedJob(Machine(noise, seed), true_s, shuffled(seed))
    job.choose()
    for _ in range(looks):
        job.look_again()
    return job.chosen


RULES: dict[str, Callable[[Noise, Sequence[float], int], int]] = {
    "fastest turn": lambda noise, true_s, seed: by_fastest_turn(Machine(noise, seed), true_s, shuffled(seed)),
    "pairs": chosen_by_pairs,
    "pairs, compared three times later": lambda noise, true_s, seed: chosen_by_pairs(noise, true_s, seed, LOOKS),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    cells = truths()
    rows: list[dict[str, Any]] = []
    for name, noise in NOISES.items():
        for rule, choose in RULES.items():
            found = [(own, own[choose(noise, own, seed)]) for own in cells for seed in range(SEEDS)]
            far = sum(took > 1.05 * min(own) for own, took in found) / len(found)
            slower = [choose(noise, SLOWER, seed) != 0 for seed in range(len(found))]
            rows.append({"noise": name, "rule": rule, "choices": len(found), "far": far, "slower": fmean(slower)})
    save("noisy_choices.json", seeds=SEEDS, slower=SLOWER, rows=rows)
    heads = ["machine", "rule", "more than 5 % slower than the best", "slower than dense"]
    print(markdown(heads, [[r["noise"], r["rule"], f"{r['far']:.1%}", f"{r['slower']:.1%}"] for r in rows]))


if __name__ == "__main__":
    main()
