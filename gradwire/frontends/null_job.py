"""The front end of one rank alone, and the runtimes of jobs that reduce nothing: one rank, or detached."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NoReturn

from torch import Tensor

from gradwire import checkpoint
from gradwire.frontends.paused import Accumulated, paused
from gradwire.plans import NATIVE, Plan
from gradwire.runtime.state.row_memory import PLAIN_ROWS
from gradwire.runtime.stats import Stats
from gradwire.runtime.steps.step_lock import RunOnAll
from gradwire.slots import Slot

NOTHING = Stats(0, 0, 0, 0, 0, 0, 0)
ENDED = "detach() ended the exchange of gradients; attach() again"


class NullFrontEnd:
    """The front end of a single process, in which nothing is reduced: there are no hooks, and no state is kept."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self._parameters = list(parameters)

    def unhook(self) -> None:
        pass

    def skip(self) -> None:
        pass

    def accumulate(self) -> AbstractContextManager[None]:
        """An empty context."""
        return nullcontext()

    def paused(self) -> AbstractContextManager[None]:
        """A context whose backward passes' gradients are dropped."""
        return paused(self._parameters, Accumulated(), nullcontext())

    def placed(self) -> NoReturn:
        raise ValueError("a process alone has no mesh to save on; save handle.state_dict(all_ranks=True)")

    def held(self) -> Mapping[str, Tensor]:
        return {}

    def healed(self, names: Collection[str]) -> None:
        pass


class NullRuntime:
    """The runtime of one rank alone, which keeps a loaded state, with other ranks' memories added up, for the next job
    of several ranks."""

    plan = origin = None
    controlled = closed = False
    sparse, rows = (), PLAIN_ROWS
    slots: Sequence[Slot] = ()

    def __init__(self, elastic: bool = False) -> None:
        self.elastic = elastic
        self._state = checkpoint.pack({}, {}, 0, checkpoint.About(0, 1, NATIVE.to_json()))

    def hosts(self) -> Sequence[str]:
        return ()

    def status(self) -> str:
        return "idle: one rank, or detached"

    def stats(self) -> Stats:
        return NOTHING

    def trace(self, steps: int) -> NoReturn:
        raise ValueError("nothing is reduced here, as with one rank, so there is nothing to trace; use torch.profiler")

    def state_dict(self, all_ranks: bool = False, padded: bool = False) -> checkpoint.StateDict:
        """The state that was loaded, or an empty one; as a state of `all_ranks`, if asked for."""
        return checkpoint.gather([self._state]) if all_ranks else dict(self._state)

    def load_state_dict(self, state: checkpoint.StateDict) -> None:
        """Keeps the state. Raises ValueError for one that is none."""
        # the state of a job of one rank, with all memories added up
        read = checkpoint.unpack(state).of_rank(0, 1)
        self._state = checkpoint.pack(read.exported, read.job, read.step, read.about)

    def leave(self) -> list[checkpoint.StateDict]:
        return []

    @contextmanager
    def between_steps(self, call: str, /, **facts: object) -> Iterator[RunOnAll]:
        yield lambda task, alone: alone

    def install(self, plan: Plan) -> None:
        """Does nothing: no plan is in force."""

    def detach(self) -> None:
        """Does nothing: no step is under way."""

    def close(self) -> None:
        """Does nothing: no resources are held."""


class EndedRuntime(NullRuntime):
    """The runtime of a detached job, of which the last figures are left; what needs more raises ValueError."""

    def __init__(self, last: Stats) -> None:
        super().__init__()
        self._last = last

    def stats(self) -> Stats:
        return self._last

    def state_dict(self, all_ranks: bool = False, padded: bool = False) -> NoReturn:
        raise ValueError(ENDED)

    def load_state_dict(self, state: checkpoint.StateDict) -> NoReturn:
        raise ValueError(ENDED)

    def between_steps(self, call: str, /, **facts: object) -> NoReturn:
        raise ValueError(ENDED)

    def install(self, plan: Plan) -> NoReturn:
        raise ValueError(ENDED)
