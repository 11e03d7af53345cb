"""The automatic plan: profiled, searched, tried, and tried again when the job changes."""

import json
import logging
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gradwire.controllers import Controller, Decision, Observation, StepView
from gradwire.controllers.requests import Change, NativeRequest, Profiled, ProfileRequest
from gradwire.plans import NATIVE, Plan
from gradwire.rules import Rule
from gradwire.schedule import Objective, Profile, Solution, Worker, search_profile
from gradwire.tuner import messages
from gradwire.tuner.candidate_plans import (
    allowed,
    by_objective,
    check_wanted,
    efficiency_of_plan,
    is_dense,
    learnt,
    may_be_dense,
    quiet,
    shortlist,
    ways_by,
    with_efficiencies,
)
from gradwire.tuner.trials import FAR, SETTLE, STILL_CLOSE, TRIED, Trials, step_s, turns_in
from gradwire.ways import Way

WARM, TIMED, TRACED = 2, 6, 6
WINDOW, PATIENCE, DRIFT = 40, 2, 1.25
MOST_LEARNT, WORTH_TRYING, CLEARLY = 1, 1.25, 0.97
CHOOSING_STEPS, BEFORE_TRIALS = 150, WARM + TIMED + TRACED + 8
"""The most steps that choosing takes; the steps before the trials."""
LEFT_FOR_DUEL = 2
LEFT_TO_LEARN = LEFT_FOR_DUEL + 1 + MOST_LEARNT
"""Turns that the first trials leave for those after them."""
EPS = {"progress": 0.01, "step": 1e-4}
"""How far from the best a plan may be by the profile, where that can be proven in time."""

Phase = Literal["begin", "dense", "profile", "first trials", "more trials", "duel", "watch"]
_logger = logging.getLogger("gradwire")


class Auto(Controller):
    """Finds the plan from `candidates` that makes the most progress per second while the job trains, and keeps it so.

    It traces some dense steps, has each candidate measured on the job's own network between two steps, and rehearses
    each on these steps' gradients for its efficiency: the progress of a step, in dense steps. It searches the plan with
    the most predicted progress per second, tries the best few in turn, and keeps the one that was best in reality; of
    several that are equally good, the most efficient: dense, where nothing beats it. With `fidelity`, say 0.01, steps
    may lose that share of a dense step's progress, and no more. Choosing takes 150 steps at most. When steps later take
    much longer or shorter than they did, it measures and searches anew.

    A candidate is a compressor, or a `Group` without slots that names memory and communicator as well. By default
    those that need no tuning: fp32, bf16, and 8 bits with a residual. With the objective "step" it is the plan with the
    shortest steps, whatever their progress, of the candidates alone; vectors travel in float32 if none is a cast.

    With `rules` each has candidates of its own, or one way; plans are searched rule by rule, and tried as a whole.

    Where nothing beats DDP without a hook, the plan is native: DDP reduces alone, and Auto only watches steps' times.

    `chosen` says whether it has settled on a plan, with which it expects steps of `expected_s`, where dense ones took
    `dense_s`; `profile` and `regime` are the last search's input and `found` its result, `measured` the profile before
    corrections by tried plans; `dense_plan` is the first plan, `tried` are all trials; `decisions` lists what was done
    and why, as does the logger "gradwire".
    """

    numbers: ClassVar[int] = 2

    def __init__(
        self,
        candidates: Sequence[Way] = (),
        fidelity: float | None = None,
        objective: Objective = "progress",
        rules: Sequence[Rule] = (),
    ) -> None:
        self.rules, self.fidelity = tuple(rules) or (Rule("", tuple(candidates)),), fidelity
        for rule in self.rules:
            check_wanted(rule.candidates, fidelity, objective)
        self.objective: Objective = objective
        self._may_be_dense = (objective == "progress" and not rules) or all(may_be_dense(rule) for rule in self.rules)
        self.measured: Profile | None = None
        self.profile: Profile | None = None
        self.regime = Worker()
        self.found: Solution | None = None
        self.dense_s, self.expected_s, self.predicted_s = float("inf"), 0.0, 0.0
        self.dense_plan: Plan | None = None
        self._phase: Phase = "begin"
        self._trials, self._turns_left = Trials([], [], 0), 0
        self.tried: list[Trials] = []
        self._seconds: list[float] = []
        self._strange, self._last_s = 0, 0.0

    @property
    def chosen(self) -> bool:
        return self._phase == "watch"

    @property
    def status(self) -> str:
        return "" if self.chosen else f"choosing a plan ({self._phase})"

    @property
    def account(self) -> str:
        return messages.account(self.dense_s, self.tried, self.decisions)

    def describe(self) -> str:
        rules = "; ".join(map(str, self.rules))
        return f"Auto({rules}, fidelity={self.fidelity!r}, objective={self.objective!r})"

    def check(self, plan: Plan) -> None:
        if not is_dense(plan):
            raise ValueError("Auto() begins with dense steps; use attach(ddp, candidates=[...]) and name yours there")

    def begin(self, plan: Plan) -> Plan:
        if is_dense(plan):  # a user may replan to any
            self.dense_plan = plan
        return plan

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        now = perf_counter()
        numbers[0], numbers[1] = now - self._last_s, 1
        self._last_s = now

    def decide(self, seen: Observation) -> Change | None:
        match self._phase:
            case "begin":
                return self._time_dense(seen)
            case "dense":
                return self._dense_timed(seen)
            case "profile":
                return self._profiled(seen, seen.answer) if seen.answer else None
            case "watch":
                return self._watch(seen)
            case _:
                return self._try(seen)

    # Dense steps, and the profile

    def _time_dense(self, seen: Observation) -> Change | None:
        assert self.dense_plan
        self._phase, self._seconds = "dense", []
        if seen.can_be_native:
            return NativeRequest(WARM + TIMED)
        return None if seen.plan == self.dense_plan else self.dense_plan

    def _dense_timed(self, seen: Observation) -> Change | None:
        self._seconds.append(step_s(seen))
        if seen.plan.native:
            self.dense_s = seen.seconds
        elif len(self._seconds) < WARM + TIMED:
            return None
        else:
            self.dense_s = median(self._seconds[WARM:])
        assert self.dense_plan
        self._log(seen, f"a dense step takes {1e3 * self.dense_s:.0f} ms")
        return self._ask_for_profile(seen, self.dense_plan)

    def _ask_for_profile(self, seen: Observation, plan: Plan) -> Change:
        self._phase = "profile"
        return ProfileRequest(quiet(plan), ways_by(self.rules, seen.replicas), TRACED)

    def _profiled(self, seen: Observation, answer: Profiled) -> Change | None:
        profile = answer.profile
        if self.measured and not is_dense(seen.plan):  # no dense steps were traced
            profile = with_efficiencies(profile, self.measured)
        self.measured, self.regime = by_objective(profile, self.objective, self.rules), Worker(answer.contention)
        self.profile = allowed(self.measured, self.fidelity)
        self.found = search_profile(self.profile, self.regime, EPS[self.objective])
        self.predicted_s = self.found.step_s
        self._turns_left = turns_in(CHOOSING_STEPS - BEFORE_TRIALS, seen.next_step - seen.step)
        self._log(seen, messages.efficiencies(self.measured, self.profile))
        plans = shortlist(self.profile, self.found, self.regime, WORTH_TRYING)
        return self._begin_trials("first trials", plans, LEFT_TO_LEARN, seen)

    # Trials

    def _begin_trials(self, phase: Phase, plans: list[Plan], left: int, seen: Observation) -> Change | None:
        """Begins rounds of trials that leave so many turns."""
        assert self.measured
        efficiencies = [efficiency_of_plan(self.measured, plan) for plan in plans]
        self._phase, self._trials = phase, Trials(plans, efficiencies, self._turns_left - left)
        self.tried.append(self._trials)
        self._log(seen, messages.tried(phase, plans))
        return self._turn(seen)

    def _turn(self, seen: Observation) -> Change | None:
        plan = self._trials.current
        if plan.native:
            return NativeRequest(SETTLE + TRIED)
        return None if plan == seen.plan else plan

    def _try(self, seen: Observation) -> Change | None:
        tried = self._trials.index
        if not self._trials.add(step_s(seen)):
            return None
        self._turns_left -= 1
        self._log(seen, messages.turn(self._trials, tried))
        if not self._trials.done:
            return self._turn(seen)
        if self._phase == "first trials":
            return self._learn(seen)
        if self._phase == "more trials":
            return self._compare_with_dense(seen)
        return self._settle(seen, self._winner_of_duel())

    def _learn(self, seen: Observation) -> Change | None:
        """Corrects the profile by the tried plans, and tries others that look better by it."""
        tried, rivals = self._trials, shortlist(*self._search_again(), self.regime, STILL_CLOSE)
        if new := [plan for plan in rivals if plan not in tried.plans][:MOST_LEARNT]:
            return self._begin_trials("more trials", [tried.plans[tried.best], *new], LEFT_FOR_DUEL, seen)
        return self._compare_with_dense(seen)

    def _search_again(self) -> tuple[Profile, Solution]:
        assert self.measured
        tried = self._trials
        profile, seconds = allowed(self.measured, self.fidelity), [*map(tried.step_s, range(len(tried.plans)))]
        self.profile = learnt(profile, self.regime, tried.plans, seconds, tried.best)
        self.found = search_profile(self.profile, self.regime, EPS[self.objective])
        return self.profile, self.found

    def _compare_with_dense(self, seen: Observation) -> Change | None:
        if self._phase == "more trials":
            self._search_again()
        trials = self._trials
        best, rate = trials.plans[trials.best], trials.rate(trials.best)
        dense = NATIVE if seen.can_be_native else self.dense_plan
        if dense is None or not self._may_be_dense or best == dense or rate * self.dense_s >= FAR:
            return self._settle(seen, best)
        self._decide_on(seen, "no plan is far better than dense steps were: the best and dense in turns")
        return self._begin_trials("duel", [dense, best], 0, seen)

    def _winner_of_duel(self) -> Plan:
        trials = self._trials
        self.dense_s = trials.step_s(0)
        return trials.plans[CLEARLY * trials.rate(1) > trials.rate(0)]

    def _settle(self, seen: Observation, plan: Plan) -> Change | None:
        self.expected_s = median(self._trials.seconds[self._trials.plans.index(plan)])
        self._decide_on(seen, messages.chosen(self._trials, plan, self.predicted_s, self.dense_s))
        if self.objective == "step" and self.found:
            self._decide_on(seen, messages.proved(self.found))
        self._phase, self._seconds, self._strange = "watch", [], 0
        if plan.native:
            return NativeRequest(WINDOW)
        return None if plan == seen.plan else plan

    # Afterwards

    def _watch(self, seen: Observation) -> Change | None:
        """Begins anew when steps have long taken another time than they did."""
        self._seconds.append(seen.seconds or step_s(seen))
        if len(self._seconds) < WINDOW and not seen.plan.native:
            return None
        now, self._seconds = median(self._seconds), []
        self.expected_s = self.expected_s or now
        self._strange = self._strange + 1 if max(now / self.expected_s, self.expected_s / now) > DRIFT else 0
        if self._strange < PATIENCE:
            return NativeRequest(WINDOW) if seen.plan.native else None
        expected = 1e3 * self.expected_s
        self._decide_on(seen, f"steps take {1e3 * now:.0f} ms, not {expected:.0f} ms any more: planning anew")
        if seen.can_be_native:  # meanwhile memories keep what they hold, which a dense plan would send at once
            return self._time_dense(seen)
        return self._ask_for_profile(seen, seen.plan)

    def _decide_on(self, seen: Observation, decision: str) -> None:
        self.decisions.append(Decision(seen.step, decision))
        self._log(seen, decision)

    def _log(self, seen: Observation, text: str) -> None:
        """Logs on rank 0."""
        if seen.rank == 0:
            _logger.info("step %d: %s", seen.step, text)

    # State

    def state_dict(self) -> dict[str, Tensor]:
        """The controller's state; timing and measuring dense steps begin again, trials go on where they were."""
        known = {
            "phase": "begin" if self._phase in ("dense", "profile") else self._phase,
            "trials": self._trials.to_json(),
            "measured": self.measured.to_json() if self.measured else None,
            "contention": self.regime.contention,
            "seconds": self._seconds,
            "numbers": [self.dense_s, self.expected_s, self.predicted_s, self._strange, self._turns_left],
        }
        return {"auto": torch.frombuffer(bytearray(json.dumps(known).encode()), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        known = json.loads(bytes(state["auto"].tolist()))
        self._phase, self._trials = known["phase"], Trials.from_json(known["trials"])
        self.measured = Profile.from_json(known["measured"]) if known["measured"] else None
        self.regime, self._seconds = Worker(known["contention"]), known["seconds"]
        self.dense_s, self.expected_s, self.predicted_s, *counts = known["numbers"]
        self._strange, self._turns_left = map(int, counts)
