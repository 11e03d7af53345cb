"""Futures that complete when a step ends."""

from threading import Lock

import torch
from torch import Tensor
from torch.futures import Future


class StepFutures:
    """Futures that complete when a step ends, such as those of DDP's buckets. For any thread."""

    def __init__(self) -> None:
        self._changing = Lock()
        self._futures: list[tuple[int, Future[Tensor] | None, Tensor]] = []

    def add(self, step: int, buffer: Tensor, waits: bool, devices: list[torch.device] | None) -> Future[Tensor]:
        """A future of `buffer`, which completes when the means of `step` are in place, or now if it does not `wait`."""
        future: Future[Tensor] = Future(devices=devices)  # pyright: ignore[reportArgumentType]
        with self._changing:
            self._futures.append((step, future if waits else None, buffer))
        if not waits:
            future.set_result(buffer)
        return future

    def complete(self, ended: int, error: BaseException | None) -> None:
        """Completes the futures of the steps up to `ended`, and all others with the `error`, if there is one. An error
        that is no Exception, such as SystemExit, is left to the thread that trains, to raise behind the framework's own
        end of the step."""
        with self._changing:
            # not while futures complete: callbacks run here, and may add others
            done = [each for each in self._futures if error or each[0] <= ended]
            self._futures = [each for each in self._futures if not error and each[0] > ended]
        # outside the lock: a callback may add another future
        for step, future, buffer in done:
            failed = error is not None and step > ended
            raised = failed and isinstance(error, Exception)
            if failed and not raised and not buffer.is_sparse:
                buffer.fill_(torch.nan)  # a torch future takes no SystemExit; the framework goes on with NaN
            if future is None:
                continue
            if raised:
                future.set_exception(error)  # pyright: ignore[reportArgumentType]
            else:
                future.set_result(buffer)
