"""What stands behind a handle where nothing is reduced."""

from typing import NoReturn

from gradwire import checkpoint
from gradwire.plans import NATIVE, Plan
from gradwire.runtime.stats import Stats


class Idle:
    """One rank alone, or a job that was detached. A state that is loaded waits here: what other ranks' memories held is
    added up in it, and goes on with the next job of several ranks."""

    plan = None

    def __init__(self) -> None:
        self._state = checkpoint.pack({}, {}, 0, checkpoint.About(0, 1, NATIVE.to_json()))

    def stats(self) -> Stats:
        """Nothing was sent."""
        return Stats(0, 0, 0, 0, 0, 0, 0)

    def trace(self, steps: int) -> NoReturn:
        """Raises ValueError."""
        raise ValueError("nothing is reduced here, as with one rank, and nothing to trace; use torch.profiler")

    def state_dict(self, all_ranks: bool = False) -> checkpoint.StateDict:
        """What was loaded, or nothing; as a state of `all_ranks`, if asked for."""
        return checkpoint.gather([self._state]) if all_ranks else dict(self._state)

    def load_state_dict(self, state: checkpoint.StateDict) -> None:
        """Keeps it. Raises ValueError for what is no such state."""
        read = checkpoint.unpack(state).of_rank(0, 1)
        self._state = checkpoint.pack(read.exported, read.job, read.step, read.about)

    def install(self, plan: Plan) -> None:
        """Nothing follows a plan here."""

    def close(self) -> None:
        """Nothing is held."""
