"""The automatic plan: profiled, searched, tried, and tried again when the job changes."""

import logging
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import ClassVar

from torch import Tensor

from gradwire.compressors import Compressor
from gradwire.controllers import Controller, Decision, Observation, StepView
from gradwire.controllers.requests import Change, NativeRequest, ProfileRequest
from gradwire.plans import NATIVE, Plan
from gradwire.rules import Rule
from gradwire.schedule import Objective, Profile, Solution, Worker, search_profile
from gradwire.tuner import candidate_plans, messages
from gradwire.tuner.phases import BEFORE_TRIALS, CHOOSING_STEPS, COMPARING, TIMED, TRACED, WARM, Phase, status
from gradwire.tuner.saved import AutoState
from gradwire.tuner.step_times import DenseTimes, is_unrecorded, step_s
from gradwire.tuner.trials import STILL_CLOSE, Trials, change_to
from gradwire.tuner.watch import LOOK_STEPS, WINDOW, StepTimeMonitor
from gradwire.ways import Way

WORTH_TRYING, LEARNT_AFTER = 1.25, 2
"""How far from the best a plan may be by the profile; rounds of trials after which the profile is corrected."""
EPS = {"progress": 0.01, "step": 1e-4}
"""How far from the best a plan may be by the profile, where that can be proven in time."""
_logger = logging.getLogger("gradwire")


class Auto(Controller):
    """Finds the plan from `candidates` that makes the most progress per second while the job trains, and keeps it so.

    It traces some dense steps, has each candidate measured on the job's own network between two steps, and rehearses
    each on these steps' gradients for its efficiency: the progress of a step, in dense steps. It searches the plan with
    the most predicted progress per second, tries the best few in turn, and keeps the one that was best in reality; of
    several that are equally good, the most efficient: dense, where nothing beats it clearly. With `fidelity`, say 0.01,
    steps may lose that share of a dense step's progress, and no more. Choosing takes 150 steps at most, on a GPU about
    300, as plans are recorded first. Where another is close, it meets the chosen one again after 3,000 steps, then
    after 6,000 and so on, for 60 steps. When steps later take much longer or shorter, it measures and searches anew.

    A candidate is a compressor, or a `Group` without slots that names memory and communicator as well. By default
    those that need no tuning: fp32, bf16, and 8 bits with a residual. With the objective "step" it is the plan with the
    shortest steps, whatever their progress, of the candidates alone; vectors travel in float32 if none is a cast.

    With `rules` each has candidates of its own, or one way; plans are searched rule by rule, and tried as a whole.
    Where nothing clearly beats DDP without a hook, the plan is native: DDP reduces alone, and Auto watches its steps.

    `chosen` says whether it has settled on a plan, with which it expects steps of `expected_s`, where dense ones took
    `dense_s`; `profile` and `regime` are the last search's input and `found` its result, `measured` the profile before
    corrections by trials; `dense_plan` the first plan, `tried` this run's trials, `decisions` what was done and why.
    """

    numbers: ClassVar[int] = 3

    def __init__(
        self,
        candidates: Sequence[Way] = (),
        fidelity: float | None = None,
        objective: Objective = "progress",
        rules: Sequence[Rule] = (),
    ) -> None:
        self.rules, self.fidelity = candidate_plans.rules_by(candidates, rules), fidelity
        candidate_plans.check_rules(self.rules, fidelity, objective)
        self.objective: Objective = objective
        self._may_be_dense = (objective == "progress" and not rules) or all(
            candidate_plans.may_be_dense(rule) for rule in self.rules
        )
        self.restart()

    def restart(self) -> None:
        self.measured: Profile | None = None
        self._measured_by = ""  # in words; "" where nothing is measured
        self.profile: Profile | None = None
        self.regime = Worker()
        self.found: Solution | None = None
        self.dense_s, self.predicted_s = float("inf"), 0.0
        self.dense_plan: Plan | None = None
        self._phase: Phase = "begin"
        self._trials, self._watch = Trials.none(), StepTimeMonitor()
        self._tried_before: list[Trials] = []  # in this run
        self._dense_times, self._last_s = DenseTimes(), 0.0

    @property
    def chosen(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._phase in ("watch", "looking again")

    @property
    def tried(self) -> list[Trials]:
        return [each for each in (*self._tried_before, self._trials) if each.plans]

    @property
    def expected_s(self) -> float:
        return self._watch.expected_s

    @property
    def status(self) -> str:
        return status(self._phase)

    @property
    def account(self) -> str:
        return messages.account(self.dense_s, self.tried, self.decisions)

    def describe(self) -> str:
        rules = "; ".join(map(str, self.rules))
        return f"Auto({rules}, fidelity={self.fidelity!r}, objective={self.objective!r})"

    def check(self, plan: Plan) -> None:
        candidate_plans.check_first(plan, self.rules)

    def begin(self, plan: Plan) -> Plan:
        if plan.native:  # a user has DDP reduce by itself
            self._phase = "resting"
            return plan
        # anew for other parameters, which tried plans lack, or where steps would count for another plan, or never come
        if set(plan.names) != set((self.dense_plan or plan).names) or self._phase in ("resting", "profile", *COMPARING):
            self._forget()
        self.dense_plan = plan
        return plan

    def may_send(self) -> Iterable[Compressor]:
        return [candidate_plans.compressor_of(each) for rule in self.rules for each in rule.candidates]

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        now = perf_counter()
        numbers[0], self._last_s = now - self._last_s, now
        numbers[1 : 2 + seen.unrecorded] = 1  # one write: 1 for the rank, and 1 more where groups are to be recorded

    def decide(self, seen: Observation) -> Change | None:
        if self._measured_by not in ("", own := self._job(seen)):
            why = f"the state was measured by {self._measured_by}, and this is {own}: planning anew"
            self._decide_on(seen, why, logging.WARNING)
            self._forget()
            self._trials, self.dense_s = Trials.none(), float("inf")  # they are that job's
        match self._phase:
            case "begin":
                return self._time_dense(seen)
            case "dense":
                return self._dense_timed(seen)
            case "profile":  # without an answer no steps are traced any more, for a state was loaded
                return self._profiled(seen, seen.answer) if seen.answer else self._time_dense(seen)
            case "watch":
                return self._watch_steps(seen)
            case _:
                return self._try(seen)

    def _job(self, seen: Observation) -> str:
        """What a profile and trials hold for, in words."""
        return f"{self.describe()} among {seen.replicas} of {seen.ranks} ranks"

    def _forget(self) -> None:
        """Begins anew, with nothing measured."""
        self._phase = "begin"
        self.measured = None
        self._measured_by = ""

    # Dense steps, and the profile

    def _time_dense(self, seen: Observation) -> Change | None:
        """Times dense steps; later searches only DDP's own, for a dense plan sends at once what memories hold."""
        assert self.dense_plan
        if self.measured and not seen.can_be_native:
            return self._ask_for_profile(seen, seen.plan)
        self._phase, self._dense_times = "dense", DenseTimes()
        if seen.can_be_native:
            return NativeRequest(WARM + TIMED, WARM)
        return None if seen.plan == self.dense_plan else self.dense_plan

    def _dense_timed(self, seen: Observation) -> Change | None:
        if (dense_s := self._dense_times.add(seen)) is None:
            return None
        assert self.dense_plan
        self.dense_s = dense_s
        self._log(seen, f"a dense step takes {1e3 * self.dense_s:.0f} ms")
        # the plan that was chosen before, with which memories hold what they do
        chosen = self._trials.plans[self._trials.choice] if self.measured else self.dense_plan
        return self._ask_for_profile(seen, self.dense_plan if chosen.native else chosen)

    def _ask_for_profile(self, seen: Observation, plan: Plan) -> Change:
        self._phase, self._measured_by = "profile", self._job(seen)
        return ProfileRequest(
            candidate_plans.few_groups(plan, seen.slots), candidate_plans.ways_by(self.rules, seen.replicas), TRACED
        )

    def _profiled(self, seen: Observation, profile: Profile) -> Change | None:
        if self.measured and not candidate_plans.is_dense(seen.plan):  # no dense steps were traced
            profile = candidate_plans.with_efficiencies(profile, self.measured)
        self.measured = candidate_plans.by_objective(profile, self.objective, self.rules)
        self.regime = Worker(profile.contention)
        self.profile = candidate_plans.allowed(self.measured, self.fidelity)
        self.found = search_profile(self.profile, self.regime, EPS[self.objective])
        self.predicted_s = self.found.step_s
        self._log(seen, messages.efficiencies(self.measured, self.profile))
        return self._begin_trials(seen, candidate_plans.shortlist(self.profile, self.found, self.regime, WORTH_TRYING))

    # Trials

    def _begin_trials(self, seen: Observation, plans: list[Plan]) -> Change | None:
        """Begins rounds of trials of these plans, and of dense where that may be chosen."""
        assert self.measured
        dense = (NATIVE if seen.can_be_native else self.dense_plan) if self._may_be_dense else None
        plans = list(dict.fromkeys([dense, *plans] if dense else plans))
        efficiencies = [candidate_plans.efficiency_of_plan(self.measured, plan) for plan in plans]
        steps, delay = CHOOSING_STEPS - BEFORE_TRIALS, seen.next_step - seen.step
        self._tried_before = self.tried
        self._phase, self._trials = "first trials", Trials(plans, efficiencies, dense is not None, steps, delay)
        self._log(seen, messages.tried(self._phase, plans))
        return self._turn(seen)

    def _turn(self, seen: Observation) -> Change | None:
        return change_to(self._trials.current, seen, self._trials.turn_steps, self._trials.settle)

    def _try(self, seen: Observation) -> Change | None:
        trials = self._trials
        if not trials.add(step_s(seen), is_unrecorded(seen)):
            return None
        if not trials.between_rounds:
            return self._turn(seen)
        self._log(seen, messages.round_of(trials))
        if self._phase == "first trials" and (trials.done or len(trials.rounds) == LEARNT_AFTER):
            self._learn(seen)
        return self._settle(seen) if trials.done else self._turn(seen)

    def _learn(self, seen: Observation) -> None:
        """Corrects the profile by the tried plans, and has the first that looks better by it take turns too."""
        assert self.measured
        self._phase = "more trials"
        rivals = candidate_plans.shortlist(*self._search_again(), self.regime, STILL_CLOSE)
        if new := [plan for plan in rivals if plan not in self._trials.plans]:
            self._trials.join(new[0], candidate_plans.efficiency_of_plan(self.measured, new[0]))
            self._log(seen, messages.tried(self._phase, new[:1]))

    def _search_again(self) -> tuple[Profile, Solution]:
        assert self.measured
        profile = candidate_plans.allowed(self.measured, self.fidelity)
        tried = self._trials.in_ways({each.way for each in profile.candidates})  # dense may be no candidate
        self.profile = candidate_plans.calibrated(profile, self.regime, *tried)
        self.found = search_profile(self.profile, self.regime, EPS[self.objective])
        return self.profile, self.found

    def _settle(self, seen: Observation) -> Change | None:
        """Puts the best plan in force, or dense where that is not clearly slower."""
        trials, looked = self._trials, self.chosen
        if trials.has_dense:
            self.dense_s = trials.step_s(0)
        if not looked and None in trials.rounds[0]:  # a plan has joined, of which the profile knows nothing
            self._search_again()
        self._decide_on(seen, messages.chosen(trials, self.predicted_s, self.dense_s))
        if not looked and self.objective == "step" and self.found:
            self._decide_on(seen, messages.proved(self.found))
        before = self._watch if looked else StepTimeMonitor()
        self._phase, plan = "watch", trials.plans[trials.choice]
        self._watch = before.after(seen.step, trials.step_s(trials.choice), trials.challenger is not None)
        return change_to(plan, seen, WINDOW)

    # Afterwards

    def _watch_steps(self, seen: Observation) -> Change | None:
        """Begins anew when steps have long taken another time than they did."""
        if not self._watch.add(seen.seconds or step_s(seen), whole=seen.plan.native):
            return None
        if not self._watch.has_changed:
            return self._look_again(seen) or change_to(seen.plan, seen, WINDOW)
        self._decide_on(seen, messages.changed(self._watch.now_s, self.expected_s))
        return self._time_dense(seen)

    def _look_again(self, seen: Observation) -> Change | None:
        """Begins further pairs of the plan and its challenger, where it is time."""
        if not self._watch.is_due(seen.step) or seen.plan != self._trials.plans[self._trials.choice]:
            return None
        self._phase = "looking again"
        self._trials.go_on(LOOK_STEPS)
        return self._turn(seen)

    def _decide_on(self, seen: Observation, decision: str, level: int = logging.INFO) -> None:
        self.decisions.append(Decision(seen.step, decision))
        self._log(seen, decision, level)

    def _log(self, seen: Observation, text: str, level: int = logging.INFO) -> None:
        """Logs on rank 0."""
        if seen.rank == 0:
            _logger.log(level, "step %d: %s", seen.step, text)

    # State

    def state_dict(self) -> dict[str, Tensor]:
        """The controller's state; timing and measuring dense steps begin again, trials go on where they were."""
        return AutoState(
            self._phase, self._trials, self.measured, self._measured_by, self.regime, self.dense_s, self.predicted_s,
            self._watch,
        ).to_state()  # fmt: skip

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        (
            self._phase, self._trials, self.measured, self._measured_by, self.regime, self.dense_s, self.predicted_s,
            self._watch,
        ) = AutoState.of(state)  # fmt: skip
        self._dense_times = DenseTimes()
