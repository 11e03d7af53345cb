"""Who waits for the means of a step without standing still: futures that a framework chains its own work to."""

from threading import Lock

import torch
from torch import Tensor
from torch.futures import Future


class Waiting:
    """Futures of buffers, by the step whose means they wait for; for any thread."""

    def __init__(self) -> None:
        self._changing = Lock()
        self._futures: list[tuple[int, Future[Tensor], Tensor]] = []

    def add(self, step: int, future: Future[Tensor], buffer: Tensor) -> None:
        """`future` gets `buffer` when the means of that step are in place."""
        with self._changing:
            self._futures.append((step, future, buffer))

    def serve(self, ended: int, error: BaseException | None) -> None:
        """The steps up to `ended` have ended; with an `error`, no other will. One that is no Exception, such as
        SystemExit, has to be raised by who added the futures, behind the framework's own end of the step."""
        with self._changing:  # only: what is chained to a future runs here, and may come back
            over = [waiting for waiting in self._futures if error or waiting[0] <= ended]
            self._futures = [waiting for waiting in self._futures if not error and waiting[0] > ended]
        for _, future, buffer in over:
            if error is None:
                future.set_result(buffer)
            elif isinstance(error, Exception):
                future.set_exception(error)  # pyright: ignore[reportArgumentType]
            else:  # torch takes no exit for an error; the framework goes on with numbers that are none
                future.set_result(buffer.fill_(torch.nan))
