"""The plan that suits the job: profiled, searched, tried, and tried again when the job changes."""

import json
import logging
from collections.abc import Sequence
from math import isfinite
from statistics import median
from time import perf_counter
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gradwire.compressors import FP32, Compressor, MultiLevel
from gradwire.controllers import Controller, Decision, Observation, StepView
from gradwire.controllers.requests import Change, NativeRequest, Profiled, ProfileRequest
from gradwire.plans import NATIVE, Group, Plan
from gradwire.schedule import Found, Profile, Worker, search
from gradwire.tuner.plans import MOST_TRIED, compressor_of, is_dense, learnt, quiet, safe, shortlist, ways_of
from gradwire.tuner.trials import ROUNDS, SETTLE, STILL_CLOSE, TURN_STEPS, Trials

WARM, TIMED, TRACED, DUELS = 3, 8, 8, 3
WINDOW, PATIENCE, DRIFT = 40, 2, 1.25
MOST_LEARNT, WORTH_TRYING, CLEARLY = 3, 1.25, 0.97
MOST_TURNS = (MOST_TRIED + 1 + MOST_LEARNT) * ROUNDS + 2 * DUELS
CHOOSING_STEPS = WARM + TIMED + TRACED + 8 + MOST_TURNS * TURN_STEPS
"""The most that a job takes to choose its plan; fewer where fewer plans are worth trying."""
EPS = 0.01

Phase = Literal["begin", "dense", "profile", "first trials", "more trials", "duel", "watch"]
_log = logging.getLogger("gradwire")


class Auto(Controller):
    """Finds the fastest plan from `candidates` while the job trains, and keeps it the fastest.

    It traces some dense steps, has each candidate measured on the job's own network between two steps, searches the
    plan with the shortest predicted step, tries the best few in turn, and keeps the one that was fastest in reality:
    dense, where nothing beats it. When steps later take much longer or shorter than they did, it measures and
    searches anew.

    A candidate is a compressor, or a `Group` without slots that names memory and communicator as well. By default
    only such as need no tuning and no leap of faith: fp32, bf16, and 8 bits with a residual.

    Where nothing beats DDP without a hook, the plan is native: DDP reduces by itself, and Auto looks only at how long
    steps take.

    `chosen` says whether it has settled on a plan, with which it expects steps of `expected_s`, where dense ones took
    `dense_s`; `profile`, `regime` and `found` are what the last search saw and found, `measured` the profile before
    tried plans had taught it anything; `dense_plan` is what it begins with; `decisions` tells what was done and why,
    as does the logger "gradwire".
    """

    numbers: ClassVar[int] = 2

    def __init__(self, candidates: Sequence[Compressor | Group] = ()) -> None:
        self.candidates = list(candidates)
        if any(isinstance(compressor_of(candidate), MultiLevel) for candidate in candidates):
            raise ValueError("MultiLevel() costs what the gradient makes it; name its sparsifier, such as TopK(0.1)")
        if candidates and not any(compressor_of(candidate).is_cast for candidate in candidates):
            self.candidates.insert(0, FP32())
        self.measured: Profile | None = None
        self.profile: Profile | None = None
        self.regime = Worker()
        self.found: Found | None = None
        self.dense_s, self.expected_s, self.predicted_s = float("inf"), 0.0, 0.0
        self.dense_plan: Plan | None = None
        self._phase: Phase = "begin"
        self._trials = Trials([])
        self._seconds: list[float] = []
        self._strange = 0
        self._last_s = 0.0

    @property
    def chosen(self) -> bool:
        return self._phase == "watch"

    @property
    def status(self) -> str:
        return "" if self.chosen else f"choosing a plan ({self._phase})"

    def describe(self) -> str:
        return f"Auto(candidates={self.candidates!r})"

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
        self._seconds.append(_step_s(seen))
        if seen.plan.native:
            self.dense_s = seen.seconds
        elif len(self._seconds) < WARM + TIMED:
            return None
        else:
            self.dense_s = median(self._seconds[WARM:])
        assert self.dense_plan
        return self._ask_for_profile(seen, self.dense_plan)

    def _ask_for_profile(self, seen: Observation, plan: Plan) -> Change:
        self._phase = "profile"
        replicas = seen.replicas
        ways = [way for candidate in self.candidates or safe(replicas) for way in ways_of(candidate, replicas)]
        return ProfileRequest(quiet(plan), tuple(ways), TRACED)

    def _profiled(self, seen: Observation, answer: Profiled) -> Change | None:
        self.measured, self.regime = answer.profile, Worker(answer.contention)
        found = search(self.measured.problem(), self.regime, EPS)
        self.found, self.profile, self.predicted_s = found, self.measured, found.step_s
        return self._begin_trials(
            "first trials", Trials(shortlist(self.measured, found, self.regime, WORTH_TRYING)), seen
        )

    # Trials

    def _begin_trials(self, phase: Phase, trials: Trials, seen: Observation) -> Change | None:
        self._phase, self._trials = phase, trials
        return self._turn(seen)

    def _turn(self, seen: Observation) -> Change | None:
        plan = self._trials.current
        if plan.native:
            return NativeRequest(SETTLE + TIMED)
        return None if plan == seen.plan else plan

    def _try(self, seen: Observation) -> Change | None:
        if not self._trials.add(_step_s(seen)):
            return None
        if not self._trials.done:
            return self._turn(seen)
        if self._phase == "first trials":
            return self._learn(seen)
        if self._phase == "more trials":
            return self._compare_with_dense(seen)
        return self._settle(seen, self._winner_of_duel())

    def _learn(self, seen: Observation) -> Change | None:
        """What tried plans teach may make others look better; those are tried, too."""
        tried = self._trials
        profile, found = self._search_again()
        rivals = shortlist(profile, found, self.regime, STILL_CLOSE)
        if new := [plan for plan in rivals if plan not in tried.plans][:MOST_LEARNT]:
            return self._begin_trials("more trials", Trials([tried.plans[tried.best], *new]), seen)
        return self._compare_with_dense(seen)

    def _search_again(self) -> tuple[Profile, Found]:
        assert self.measured
        tried = self._trials
        self.profile = learnt(self.measured, self.regime, tried.plans, tried.seconds, tried.best)
        self.found = search(self.profile.problem(), self.regime, EPS)
        return self.profile, self.found

    def _compare_with_dense(self, seen: Observation) -> Change | None:
        if self._phase == "more trials":
            self._search_again()
        best, seconds = self._trials.plans[self._trials.best], median(self._trials.seconds[self._trials.best])
        dense = NATIVE if seen.can_be_native else self.dense_plan
        if dense is None or best == dense or WORTH_TRYING * seconds <= self.dense_s:
            return self._settle(seen, best)
        self._say(seen, "no plan is much faster than dense steps were: the best and dense in turns")
        return self._begin_trials("duel", Trials([dense, best], DUELS, drops=False), seen)

    def _winner_of_duel(self) -> Plan:
        (dense, best), (dense_s, best_s) = self._trials.plans, map(median, self._trials.seconds)
        self.dense_s = dense_s
        return best if best_s < CLEARLY * dense_s else dense

    def _settle(self, seen: Observation, plan: Plan) -> Change | None:
        trials = self._trials
        self.expected_s = median(trials.seconds[trials.plans.index(plan)])
        others = [median(own) for other, own in zip(trials.plans, trials.seconds, strict=True) if other != plan]
        self._tell(seen, plan, others)
        self._phase, self._seconds, self._strange = "watch", [], 0
        if plan.native:
            return NativeRequest(WINDOW)
        return None if plan == seen.plan else plan

    # Afterwards

    def _watch(self, seen: Observation) -> Change | None:
        """Begins anew when steps have long taken another time than they did."""
        self._seconds.append(seen.seconds or _step_s(seen))
        if len(self._seconds) < WINDOW and not seen.plan.native:
            return None
        now, self._seconds = median(self._seconds), []
        self.expected_s = self.expected_s or now
        self._strange = self._strange + 1 if max(now / self.expected_s, self.expected_s / now) > DRIFT else 0
        if self._strange < PATIENCE:
            return NativeRequest(WINDOW) if seen.plan.native else None
        expected = 1e3 * self.expected_s
        self._say(seen, f"steps take {1e3 * now:.0f} ms, not {expected:.0f} ms any more: planning anew")
        if seen.can_be_native:  # meanwhile memories keep what they hold, which a dense plan would send at once
            return self._time_dense(seen)
        return self._ask_for_profile(seen, seen.plan)

    def _tell(self, seen: Observation, plan: Plan, others: Sequence[float]) -> None:
        name = "DDP by itself" if plan.native else plan.describe()
        rest = f"; others took {', '.join(f'{1e3 * second:.0f}' for second in others)} ms" if others else ""
        dense = f"; dense took {1e3 * self.dense_s:.0f} ms" if isfinite(self.dense_s) else ""
        self._say(
            seen,
            f"{name}: {1e3 * self.expected_s:.0f} ms a step (at first {1e3 * self.predicted_s:.0f} ms was predicted "
            f"for the best{rest}{dense})",
        )

    def _say(self, seen: Observation, decision: str) -> None:
        self.decisions.append(Decision(seen.step, decision))
        if seen.rank == 0:
            _log.info("step %d: %s", seen.step, decision)

    # State

    def state_dict(self) -> dict[str, Tensor]:
        """In the middle of timing or measuring dense steps, that begins again; trials go on where they were."""
        words = {
            "phase": "begin" if self._phase in ("dense", "profile") else self._phase,
            "trials": self._trials.to_json(),
            "measured": self.measured.to_json() if self.measured else None,
            "contention": self.regime.contention,
            "seconds": self._seconds,
            "numbers": [self.dense_s, self.expected_s, self.predicted_s, self._strange],
        }
        return {"auto": torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        words = json.loads(bytes(state["auto"].tolist()))
        self._phase, self._trials = words["phase"], Trials.from_json(words["trials"])
        self.measured = Profile.from_json(words["measured"]) if words["measured"] else None
        self.regime, self._seconds = Worker(words["contention"]), words["seconds"]
        self.dense_s, self.expected_s, self.predicted_s, strange = words["numbers"]
        self._strange = int(strange)


def _step_s(seen: Observation) -> float:
    """The seconds of a step, or of the median one of those that the framework made."""
    return seen.seconds if seen.plan.native else float(seen.sums[0] / seen.sums[1])
