"""What stands behind a handle where nothing is reduced."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar, NoReturn

from torch import Tensor

from gradwire import checkpoint
from gradwire.frontends.paused import paused
from gradwire.plans import NATIVE, Plan
from gradwire.runtime.stats import Stats
from gradwire.runtime.turns import Together


class Nothing:
    """The front end of a single process, in which nothing is reduced."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self._parameters = list(parameters)

    def unhook(self) -> None:
        """There are no hooks."""

    def accumulate(self) -> AbstractContextManager[None]:
        """Every backward pass only accumulates."""
        return nullcontext()

    def paused(self) -> AbstractContextManager[None]:
        """The gradients of backward passes inside are gone afterwards."""
        return paused(self._parameters, set(), nullcontext())

    def skip(self) -> None:
        """Nothing was sent, and nothing is kept."""

    def placed(self) -> NoReturn:
        """Raises ValueError."""
        raise ValueError("a process alone has no mesh to save on; save handle.state_dict(all_ranks=True)")

    def held(self) -> Mapping[str, Tensor]:
        """Nothing is to be alike."""
        return {}


class Idle:
    """One rank alone, or a job that was detached. A state that is loaded waits here: what other ranks' memories held is
    added up in it, and goes on with the next job of several ranks."""

    plan = None
    elastic = False
    numel: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        self._state = checkpoint.pack({}, {}, 0, checkpoint.About(0, 1, NATIVE.to_json()))

    def hosts(self) -> Sequence[str]:
        """Nobody has said its name."""
        return ()

    def status(self) -> str:
        """Nothing happens."""
        return "idle: one rank, or detached"

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

    def leave(self) -> list[checkpoint.StateDict]:
        """Nothing was begun."""
        return []

    @contextmanager
    def between_steps(self, call: str, **words: object) -> Iterator[Together]:
        """There is no step, and no other rank."""
        yield lambda task, alone: alone

    def install(self, plan: Plan) -> None:
        """Nothing follows a plan here."""

    def detach(self) -> None:
        """There is no step."""

    def close(self) -> None:
        """Nothing is held."""
