"""The means of steps, for threads that wait for them: by a call, or by a future, such as those of DDP's buckets."""

from threading import Lock

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.runtime.failures.first_error import FirstError
from gradwire.runtime.steps.gradient_collector import GradientCollector, StepFence
from gradwire.runtime.steps.steps import Steps


class StepResults:
    """Says when a step's means are in place, or raises the job's error. The worker calls `complete` and `fail`, other
    threads the rest."""

    def __init__(self, steps: Steps, collector: GradientCollector, first_error: FirstError) -> None:
        self._steps = steps
        self._collector = collector
        self._executor = steps.executor
        self._first_error = first_error
        # by step the futures to complete, None for one that was completed at once, and their buffers
        self._futures: list[tuple[int, Future[Tensor] | None, Tensor]] = []
        self._changing = Lock()

    def watch(self, buffer: Tensor, *, waits: bool) -> Future[Tensor]:
        """A future of `buffer`. If it `waits`, it completes when the step's means are in place; else at once."""
        future: Future[Tensor] = Future(devices=self._executor.future_devices())  # pyright: ignore[reportArgumentType]
        with self._changing:
            self._futures.append((self._collector.opened, future if waits else None, buffer))
        if not waits:
            future.set_result(buffer)
        # the step may have ended, or the job failed, before the future was there
        if (error := self._first_error.first) or (waits and self._collector.reduced == self._collector.opened):
            self.complete() if error else self._executor.post(self.complete)
        # where it fails, only with `then` does DDP raise the error itself
        return future.then(Future.value) if waits else future

    def finish(self, behind: StepFence | None = None) -> None:
        """Waits for the means of all steps, or of those before a fence. Raises the job's error if some are missing."""
        if not self.wait_for_means(behind):
            self._first_error.raise_error()

    def wait_for_means(self, behind: StepFence | None = None) -> bool:
        """Waits for the means of all steps, or of those before a fence. Returns whether this rank has all of them, as
        it may even if the job has failed since. Then its residuals are updated, and its optimizer has to step, too."""
        try:
            self._executor.flush(behind and behind.fence)
        except BaseException as error:
            if error is not self._first_error.first:  # such as Ctrl-C
                raise
        last = behind.step if behind else self._collector.opened
        has_all = self._first_error.wait_for_blame() is None or self._steps.last_counted >= last
        self._executor.order_behind(None if self._first_error.first else behind and behind.fence)
        return has_all

    def check_whole(self) -> None:
        """Raises the job's error, if any, unless this rank has the last step's means: then the next call raises it."""
        if self._first_error.first and not self.wait_for_means():
            self._first_error.raise_error()

    def complete(self) -> None:
        """Completes the futures of steps that have ended; where the job has failed, all, some with its error. On the
        worker, or where that has failed."""
        error = self._first_error.wait_for_blame()
        self._complete(self._steps.last_counted if error else self._collector.reduced, error)

    def fail(self, error: BaseException) -> None:
        """Completes all futures: those of steps that count, and all others with the error."""
        self._complete(self._steps.last_counted, error)

    def _complete(self, ended: int, error: BaseException | None) -> None:
        """Completes the futures of the steps up to `ended`, and all others with the `error`, if there is one. A torch
        future takes no SystemExit or the like: its buffer becomes NaN, and the thread that trains raises the error
        once the framework has ended the step."""
        with self._changing:
            done = [each for each in self._futures if error or each[0] <= ended]
            self._futures = [each for each in self._futures if not error and each[0] > ended]
        # outside the lock: a callback may add another future
        for step, future, buffer in done:
            failed = error if step > ended else None
            if failed and not isinstance(failed, Exception) and not buffer.is_sparse:
                buffer.fill_(torch.nan)
            if future and isinstance(failed, Exception):
                future.set_exception(failed)  # pyright: ignore[reportArgumentType]
            elif future:
                future.set_result(buffer)
