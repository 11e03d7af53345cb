"""CUDA graphs: work that a GPU is given once and then asked for again, without Python or torch's dispatch in between.

Only this module knows them. The rest of the runtime sees `Executor.graphs`, which tests replace by a tape.
"""

import gc
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Protocol, TypeVar

import torch

from gradwire.torch_private.captures import end_failed

T = TypeVar("T")


class Graphs(Protocol):
    """Records turns of one group, to be replayed in the same order."""

    def record(self, turn: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """A function that has the device do again what `turn` launches, and what `turn` returned. The device has done
        none of it yet."""
        ...


class CUDAGraphs:
    """The CUDA graphs of one group, on the current stream. What turns allocate comes from one pool of memory, which
    steps of the same group share, as none begins before the other has ended. torch gives that pool up with the last
    graph that uses it: once all of them are dropped, others have to be made."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # the last turn of a dense group may launch nothing
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")

    def record(self, turn: Callable[[], T]) -> tuple[Callable[[], None], T]:
        graph = torch.cuda.CUDAGraph()
        with _nothing_collected:
            try:
                # launches of this thread alone are captured; other threads go on
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                value = turn()
            except BaseException:
                with suppress(RuntimeError):  # it says that the capture has failed
                    self._end(graph)
                raise
            self._end(graph)
        return graph.replay, value

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            end_failed(graph, self._pool)
            raise


class NothingCollected:
    """A context without garbage collection, which the threads of several jobs may be inside of at once: the last to
    leave begins it again. A dropped graph, kernel or tensor that it frees, of torch.compile for example, calls what
    CUDA forbids during a capture."""

    def __init__(self) -> None:
        self._lock, self._inside, self._collects = Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._collects = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._collects and not self._inside:
                gc.enable()


_nothing_collected = NothingCollected()
