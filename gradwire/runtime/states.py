"""What a job saves, and goes on from."""

from collections.abc import Mapping

from gradwire import checkpoint
from gradwire.collective import SHARD
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.gathering import gather
from gradwire.runtime.meeting import AbsentRanks
from gradwire.runtime.plans import Plans
from gradwire.runtime.settings import Settings
from gradwire.runtime.steps import Steps


class States:
    """The state dicts of a job. `read` is for the thread that trains, while the worker is idle, `gather` and `take` for
    the worker, `save` and `last` for any thread."""

    def __init__(self, steps: Steps, plans: Plans, agreement: Agreement, settings: Settings) -> None:
        self._steps, self._plans, self._agreement, self._settings = steps, plans, agreement, settings
        self._mesh, self._slots = steps.pipeline.mesh, steps.store.slots

    def save(self) -> checkpoint.StateDict:
        """A copy of this rank's state after the last whole step."""
        steps, plans, mesh = self._steps, self._plans, self._mesh
        with steps.changing:
            steps.settle()
            skipped = steps.number - steps.taken
            about = checkpoint.About(mesh.rank, mesh.ranks, plans.plan.to_json(), plans.order, skipped)
            return checkpoint.pack(steps.store.export(), plans.export(), steps.number, about)

    def last(self) -> list[checkpoint.StateDict]:
        """The state after the last whole step; then that after the next one, if the others may have counted it.
        Whatever the worker is still in, no step counts any more."""
        with self._steps.changing:
            states = [self.save()]
            if self._steps.promised:
                self._steps.count()
                states.append(self.save())
            self._steps.over = True
        return states

    def gather(self) -> checkpoint.StateDict:
        """The state of all ranks, for rank 0; all of them call this together."""
        own = checkpoint.unpack(self.save())
        return gather(own, self._slots, self._mesh, self._agreement, self._steps.executor.device)

    def read(self, state: checkpoint.StateDict) -> checkpoint.Unpacked:
        """What this rank is to take over from a state that all of them load together; nothing has changed yet. Raises
        ValueError, on all ranks, where one of them cannot, or where the states do not belong together."""
        before, read = self._plans.export(), list[checkpoint.Unpacked]()

        def words() -> Mapping[str, str]:
            whole = checkpoint.unpack(state)
            own = whole.of_rank(self._mesh.rank, self._mesh.ranks)
            own.check(self._slots, self._settings.others)
            self._plans.check(own)
            read.append(own)
            return whole.words(sharded=SHARD in self._mesh.axes)

        try:
            self._agreement.on(words, "load_state_dict()")
        except (ValueError, AbsentRanks):
            self._plans.restore(before)
            raise
        return read[0]

    def take(self, read: checkpoint.Unpacked) -> None:
        """Goes on from what was read."""
        self._steps.number, self._steps.taken = read.step, read.step - read.about.skipped
        self._plans.load(read)
        self._steps.close()
        with self._steps.changing:
            self._steps.store.load(read.exported)
