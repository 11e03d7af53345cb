"""Residuals that are the momentum of a compressor that makes updates."""

from collections.abc import Iterable, Mapping

from gradwire.checkpoint import Unpacked
from gradwire.plans import Plan
from gradwire.slots import Slot


class Momenta:
    """The parameters of a job whose residual is the momentum of a compressor that makes updates. Any other compressor
    would send it as a gradient, whatever plans were in force meanwhile."""

    made_by: Mapping[str, str]
    """By parameter the compressor, in words."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._matrices = {slot.name: slot.matrix for slot in slots}
        self.made_by = {}
        self._next: Plan | None = None

    def follow(self, plan: Plan) -> None:
        """Notes the plan in force, whose first step makes momenta."""
        self._next = plan

    def step_ended(self) -> None:
        """Adds the parameters whose momentum the plan's step has made."""
        if self._next:
            self.made_by, self._next = {**self.made_by, **self._of(self._next)}, None

    def load(self, read: Unpacked, plan: Plan) -> None:
        """Takes the momenta of a loaded state, and those of the plan in force, in place of all others."""
        self.made_by = {**self.of_state(read), **self._of(plan)}

    def of_state(self, read: Unpacked) -> dict[str, str]:
        """The momenta of a state, as `made_by`. Of a state of Gradwire 0.2 they follow from its plan."""
        try:
            planned = self._of(Plan.from_json(read.about.plan)) if read.step else {}
        except ValueError:  # of compressors that are not here
            planned = {}
        return planned | {name: made for name, made in read.about.momenta.items() if name in self._matrices}

    def check(self, plan: Plan, made_by: Mapping[str, str]) -> None:
        """Raises ValueError for a plan that would send one of these as a residual."""
        named = [(name, group.compressor) for group in plan.groups for name in group.slots if name in made_by]
        for name, compressor in named:
            if not compressor.makes_update(*self._matrices[name]):
                raise ValueError(
                    f"the memory of {name!r} is the momentum of {made_by[name]}, which {compressor} would send as a "
                    f"gradient; keep {made_by[name]} there, or attach anew without this state"
                )

    def _of(self, plan: Plan) -> dict[str, str]:
        return {
            name: str(group.compressor)
            for group in plan.groups
            for name in group.slots
            if name in self._matrices and group.memory.error_feedback
            if group.compressor.makes_update(*self._matrices[name])
        }
