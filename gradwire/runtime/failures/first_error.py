"""The error that ends a job on this rank: the first one, of whichever thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NoReturn
from weakref import WeakMethod

from gradwire.runtime.failures.job_errors import clear_frames
from gradwire.transports import forked


class FirstError:
    """A job's first error. `end`, a method of the job, is called with it, if the job still exists. Threads that ask for
    the error wait until it is known which rank is to blame."""

    first: BaseException | None = None
    """The error, from the moment when it comes."""

    def __init__(self, end: "WeakMethod[Callable[[BaseException], None]]") -> None:
        self._end, self._ending = end, Lock()

    def fail(self, error: BaseException) -> None:
        """Ends the job, unless another error has."""
        with self._ending:  # on any thread: the first error counts
            if self.first:
                clear_frames(error)
                return
            self.first = error
            if end := self._end():
                end(error)

    def wait_for_blame(self) -> BaseException | None:
        """The error, once it is known who is to blame; None if there is none."""
        with self._ending:
            return self.first

    def raise_error(self) -> None:
        """Raises the error, if there is one."""
        if error := self.wait_for_blame():
            raise error

    def refuse(self, reason: str) -> NoReturn:
        """Ends the job with RuntimeError, on all ranks, where a user or framework did what Gradwire cannot follow.
        Raises the job's first error, which may be an earlier one."""
        self.fail(error := RuntimeError(reason))
        raise self.wait_for_blame() or error

    @contextmanager
    def fail_job_on(self, kind: type[BaseException] = RuntimeError) -> Iterator[None]:
        """A context in which an error of this kind ends the job; raises the job's first error. By default it is one of
        a meeting of ranks."""
        try:
            yield
        except kind as error:
            self.fail(error)
            self.raise_error()

    def after_fork(self) -> None:
        """Has a forked child find an error, where locks may be held by threads that are not there."""
        self._ending, self.first = Lock(), RuntimeError(forked.FORKED)
