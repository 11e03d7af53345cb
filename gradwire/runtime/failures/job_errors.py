"""Errors that end a job, and how far a rank is when one does."""

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


def rank_at(rank: int, host: str) -> str:
    """A rank as text, with its host where that is known."""
    return f"rank {rank} (host {host})" if host else f"rank {rank}"


def clear_frames(error: BaseException | None) -> None:
    """Clears the traceback frames of an error and of its causes, whose local variables they keep alive."""
    while error:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


BETWEEN, WAITING = "between steps", "waiting for the other ranks"
ELSEWHERE = f"{WAITING} in a step of another optimizer or model; take their steps in the same order on all ranks"
"""What a rank does when an error occurs, in words that errors use."""


class RankStatus(NamedTuple):
    """How far a rank is; read when a job ends."""

    step: int = 0
    """The step, counted from 0, that it is in or would begin next."""
    doing: str = BETWEEN
    exchanged_s: float = 0.0
    """How long it has exchanged gradients of that step; 0 before its first group."""


class ReductionError(RuntimeError):
    """A group could not be reduced, or a controller failed; the message names it, and the rank at fault."""


@contextmanager
def failing_in(part: object, method: str, rank: int) -> Iterator[None]:
    """A context whose errors say that a method of a user's part has failed, on this rank."""
    try:
        yield
    except Exception as error:
        what = f"{type(part).__name__}.{method}()"
        raise ReductionError(f"{what} failed on rank {rank}: {type(error).__name__}: {error}") from error


class PeerFailed(ReductionError):
    """An error that another rank caused. Its reason is known once all others that are left have ended, too."""

    ranks: Sequence[int] = ()
    """The ranks that did not come to a meeting, where that is the error."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        # unpickled, it would be made of its message alone, which __init__ does not take
        return type(self).__new__, (type(self), *self.args), vars(self)

    def blame(self, why: str) -> None:
        """Sets the reason."""
        self.args = (f"{self._what}: {why}",)


class AbsentRanks(PeerFailed):
    """Some `ranks` did not come to a meeting; all others raise this. If some of them were lost, the message
    says which."""

    def __init__(self, call: str, why: str, ranks: Sequence[int]) -> None:
        super().__init__(f"{call} ended", why)
        self.args, self.ranks = (why,), ranks


class RankLeft(RuntimeError):
    """This rank leaves the job, as its user asked."""
