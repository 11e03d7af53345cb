"""The executor: a thread and, on a GPU, a stream of its own, on which all reducing is done.

Only this module handles threads and streams, `gradwire.runtime.worker.events` the events that are timed, and
`gradwire.runtime.worker.graphs` CUDA graphs. Two threads meet here:

1. The thread that trains posts a task. On a GPU it records an event on its own stream, behind what the task will read.
2. The worker takes tasks in the order in which they were posted. On a GPU its stream first waits for the task's event;
   the host does not. What the task computes is queued on the worker's stream.
3. A thread that needs the results calls `order_behind`, or waits for a future that was completed under the worker's
   stream: that orders its stream behind the worker's, again without the host.
4. Memory that one stream allocated and the other uses is kept from being given away too soon by `keep`.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwire.ops.host import to_host
from gradwire.runtime.worker.events import DeviceEvent, Event, HostEvent
from gradwire.runtime.worker.graphs import CUDAGraphs, Graphs
from gradwire.runtime.worker.waits import Waits
from gradwire.torch_private.foreach import memory_of
from gradwire.transports.staged import Copied
from gradwire.transports.transport import Lost

T = TypeVar("T")


Fence = Future[torch.Event | None]
"""A future that completes when the worker has come to a place in its queue; on a GPU with the event there."""

CLOSE_S, POLL_S = 2.0, 0.005
"""Seconds for which `close` waits for the thread, and for a stream that nobody watches; how often it asks."""


class Executor:
    """A worker thread that carries out tasks one after another. A task's error goes to `fail`; then comes the next."""

    aborted = False
    """Collectives under way were aborted, or are about to be; on a GPU they leave garbage and raise nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device, priority=-1) if self._cuda else None
        self.waits = Waits()
        # (1,) NaN once collectives are aborted, else 0: on the host, and as the device's stream last read it
        self._host_flag = torch.zeros(1, dtype=torch.float32, device="cpu", pin_memory=self._cuda)
        self._device_flag = torch.zeros(1, dtype=torch.float32, device=device)
        # tasks for the worker, in order
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], Any] | None] = queue.SimpleQueue()
        self.fail: Callable[[BaseException], None] = lambda error: None
        self._awaited: set[Future[Any]] = set()
        self._error: BaseException | None = None
        # the worker: a daemon, so that it keeps no process alive
        self._thread = threading.Thread(target=self._work, name="gradwire", daemon=True)
        self._thread.start()

    def refuse_recording(self) -> None:
        """Raises RuntimeError where a user's CUDA graph records the current stream: a replay would call no hook."""
        if self._cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a CUDA graph cannot record the exchange of gradients; record parts of the model before attach(), by "
                "torch.cuda.make_graphed_callables(), or use torch.compile(model, mode='reduce-overhead')"
            )

    def post(self, task: Callable[[], None]) -> None:
        """Queues a task for the worker, behind the current stream's work so far."""
        # the event makes the worker's stream wait for what the task will read
        self._tasks.put((task, torch.cuda.current_stream(self.device).record_event() if self._cuda else None))

    def call(self, function: Callable[[], T]) -> T:
        """Runs `function` on the worker; returns what it returns and raises what it raises."""
        if threading.current_thread() is self._thread:
            return function()

        def whole() -> T:
            # results are there when this returns, on a GPU as well
            value = function()
            self.synchronize()
            return value

        return self._wait(self._promise(whole))

    def fence(self) -> Fence:
        """A fence behind all tasks posted so far, to `flush` up to."""
        return self._promise(lambda: self._stream.record_event() if self._stream else None)

    def flush(self, fence: Fence | None = None) -> None:
        """Returns when all tasks posted so far, or before `fence`, are done; on a GPU, when their work is queued."""
        self._wait(fence or self._promise(lambda: None))

    def fail_waiters(self, error: BaseException) -> None:
        """Raises the error in all threads that wait for the worker, now and from now on. On any thread, for the worker
        may be in a collective that never ends."""
        self._error = error
        # threads that wait now; those that come later find the error in `_wait`
        for awaited in self._awaited.copy():
            _settle(awaited, error)

    def _promise(self, function: Callable[[], T]) -> Future[T]:
        """A future of the result of `function` on the worker."""
        result = Future[T]()

        # on the worker; the caller gets the error when it asks for the result
        def task() -> None:
            try:
                value = function()
            except BaseException as error:
                _settle(result, error)
            else:
                _settle(result, None, value)

        # behind all tasks that were posted before
        self.post(task)
        return result

    def _wait(self, result: Future[T]) -> T:
        """The result of a promise."""
        # the order matters: entered first, then the error is looked at, so that `fail_waiters` misses no thread
        self._awaited.add(result)
        if self._error:  # it came before this thread waited
            _settle(result, self._error)
        # this thread waits here for the worker
        try:
            return result.result()
        finally:
            self._awaited.discard(result)

    def record_event(self) -> Event:
        """Now, on the current stream of the executor's device."""
        return DeviceEvent(self.device) if self._cuda else HostEvent(time.perf_counter())

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keeps the memory of these tensors, allocated on another stream, until the worker's stream has used them."""
        if self._stream:
            for part in (part for tensor in tensors for part in memory_of(tensor)):
                part.record_stream(self._stream)

    def order_behind(self, fence: Fence | None = None) -> None:
        """Orders the current stream's work from now on behind the worker's so far, or before a flushed `fence`."""
        if self._stream:
            event = fence.result() if fence else self._stream.record_event()
            assert event is not None
            torch.cuda.current_stream(self.device).wait_event(event)

    def abort(self) -> None:
        """Notes that collectives are about to be aborted; on any thread."""
        self.aborted = True
        self._host_flag.fill_(torch.nan)

    def nan_if_aborted(self) -> Tensor:
        """A tensor (1,), which the current stream reads from the host: NaN if collectives before this place may have
        been aborted, else 0. The next call overwrites it."""
        return self._device_flag.copy_(self._host_flag, non_blocking=True)

    def found_abort(self) -> Tensor:
        """1 () where the last `nan_if_aborted` was NaN, else 0."""
        return self._device_flag.isnan().float().view(())

    def on_host(self, tensor: Tensor, ends_step: bool = False) -> Callable[[], Tensor]:
        """A function that returns the tensor's present value on the host. An early call waits for the GPU."""
        # the copy is ordered behind the stream's work so far
        copy = to_host(tensor)
        if ends_step:
            self.waits.step_ends(copy)
        if not self._cuda:
            return lambda: copy
        # reading it waits for the copy alone, on any thread
        copied = Copied(self.device)

        def value() -> Tensor:
            copied.wait()
            return copy

        return value

    def graphs(self) -> Callable[[], Graphs] | None:
        """Makes the CUDA graphs of a group, for the worker to record; None on a CPU, and with GRADWIRE_GRAPHS=0."""
        return CUDAGraphs if self._cuda and os.environ.get("GRADWIRE_GRAPHS") != "0" else None

    @property
    def is_immediate(self) -> bool:
        """Whether results are there when a call returns, as on a CPU."""
        return not self._cuda

    def future_devices(self) -> list[torch.device] | None:
        """The devices of torch futures that are completed here; None on a CPU."""
        return [self.device] if self._cuda else None

    def synchronize(self) -> None:
        """Waits until the worker's stream is done. Raises `Lost` where collectives on it were aborted."""
        if self._stream:
            self._stream.synchronize()
        if self.aborted:
            raise Lost("the collectives under way were aborted")

    def close(self, watched: Callable[[], bool] | None = None) -> bool:
        """Ends the thread once all tasks are done, on a GPU with their work. Returns False where that takes more than
        CLOSE_S. Time in which the work is `watched`, by a thread that ends it if a rank is lost, does not count. (A
        thread that is still in torch when Python exits aborts the process.)"""
        # the thread ends behind the tasks that were posted
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        # work of the last task
        ended = threading.current_thread() is self._thread or not self._thread.is_alive()
        return ended and self._stream_ends(watched)

    def _stream_ends(self, watched: Callable[[], bool] | None) -> bool:
        until = time.monotonic() + CLOSE_S
        try:
            while self._stream and not self._stream.query():
                if watched and watched():
                    until = time.monotonic() + CLOSE_S
                elif time.monotonic() > until:
                    return False
                time.sleep(POLL_S)
        except RuntimeError:  # CUDA has failed
            return False
        return True

    def _work(self) -> None:
        # the worker's own stream is current as long as the thread lives
        scope: AbstractContextManager[Any] = torch.cuda.stream(self._stream) if self._stream else nullcontext()
        with torch.no_grad(), scope:
            while (item := self._tasks.get()) is not None:
                task, ready = item
                # on a GPU: behind what the training thread has launched before it posted the task
                if self._stream and ready:
                    self._stream.wait_event(ready)
                self.waits.task(begins=True)
                try:
                    task()
                except BaseException as error:
                    self.fail(error)
                # a task's tensors are not kept alive while the next one is waited for
                self.waits.task(begins=False)
                del task, item
        # tasks that are posted from here on are never run
        self.fail_waiters(self._error or RuntimeError("the job has ended; attach anew"))


def _settle(result: Future[Any], error: BaseException | None, value: object = None) -> None:
    """Completes a future, unless it is complete already."""
    with suppress(InvalidStateError):
        result.set_exception(error) if error else result.set_result(value)
