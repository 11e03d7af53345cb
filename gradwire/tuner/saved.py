"""What a state has of the automatic plan."""

import json
from typing import NamedTuple, Self

from torch import Tensor

from gradwire.schedule import Profile, Worker
from gradwire.text_tensors import letters, text_of
from gradwire.tuner.phases import Phase
from gradwire.tuner.trials import Trials
from gradwire.tuner.watch import StepTimeMonitor


class AutoState(NamedTuple):
    """What `Auto` goes on from, with the names that these have there."""

    phase: Phase
    trials: Trials
    measured: Profile | None
    measured_by: str
    regime: Worker
    dense_s: float
    predicted_s: float
    watch: StepTimeMonitor

    def to_state(self) -> dict[str, Tensor]:
        known = {
            "phase": self.phase,
            "trials": self.trials.to_json(),
            "measured": self.measured.to_json() if self.measured else None,
            "measured by": self.measured_by,
            "contention": self.regime.contention,
            "numbers": [self.dense_s, self.predicted_s],
            "watch": vars(self.watch),
        }
        return {"auto": letters(json.dumps(known))}

    @classmethod
    def of(cls, state: dict[str, Tensor]) -> Self:
        """The inverse of `to_state`."""
        known = json.loads(text_of(state["auto"]))
        dense_s, predicted_s = known["numbers"]
        return cls(
            known["phase"],
            Trials.from_json(known["trials"]),
            Profile.from_json(known["measured"]) if known["measured"] else None,
            known["measured by"],
            Worker(known["contention"]),
            dense_s,
            predicted_s,
            StepTimeMonitor(**known["watch"]),
        )
