"""Who waits for the means of a step without standing still: futures that a framework chains its own work to."""

from torch import Tensor
from torch.futures import Future


class Waiting:
    """Futures of buffers, by the step whose means they wait for. Everything here runs on the executor's thread."""

    def __init__(self) -> None:
        self._futures: list[tuple[int, Future[Tensor], Tensor]] = []

    def add(self, step: int, future: Future[Tensor], buffer: Tensor) -> None:
        """`future` gets `buffer` when the means of that step are in place."""
        self._futures.append((step, future, buffer))

    def serve(self, ended: int, error: BaseException | None) -> None:
        """The steps up to `ended` have ended; with an `error`, no other will."""
        waiting, self._futures = self._futures, []
        for step, future, buffer in waiting:
            if error:
                future.set_exception(error)  # pyright: ignore[reportArgumentType]
            elif step <= ended:
                future.set_result(buffer)
            else:
                self._futures.append((step, future, buffer))
