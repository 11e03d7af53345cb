"""Workspaces: tensors that are allocated once and kept, so that a step allocates nothing of gradient size."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwire.ops.host import stream_of

T = TypeVar("T")


class Workspace:
    """Tensors kept by name, and objects kept by key."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: dict[str, Tensor] = {}
        self._made: dict[Hashable, Any] = {}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor kept as `name`, viewed in this shape; it still has what was last written. New ones are zero."""
        numel = prod(shape)
        kept = self._tensors.get(name)
        # none, or too small a one: a new one, which serves smaller shapes as well
        if kept is None or kept.numel() < numel or kept.dtype != dtype:
            kept = self._tensors[name] = torch.zeros(numel, dtype=dtype, device=self.device)
        return kept[:numel].view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that are kept, by name or by key, by themselves or in tuples and lists; memory of which
        there are several views counts once. Any thread may ask."""
        # as they are now: another thread may add to them
        kept = [*self._tensors.values()], [*self._made.values()]
        storages = (tensor.untyped_storage() for tensor in _tensors_in(kept))
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object that `make` returned when it was first called for `key`, such as a group's views."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def kept(self, key: Hashable) -> Any | None:
        """The object that `once` keeps for `key`; None where there is none yet."""
        return self._made.get(key)

    def latest(self, name: str, key: Hashable, make: Callable[[], T]) -> T:
        """Like `once`, but of each `name` only the object of the last `key` is kept."""
        if (kept := self._made.get(name)) is None or kept[0] != key:
            kept = self._made[name] = key, make()
        return kept[1]

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A context at whose end `once` drops what it has made inside, such as tables for a layout of one step."""
        before = dict(self._made)
        try:
            yield
        finally:
            self._made = before

    def forget_views(self) -> None:
        """Drops all that `once` keeps, for another algorithm works here from now on; the tensors stay."""
        self._made.clear()

    def contents(self) -> "Contents":
        """A copy of the tables of all that is kept now."""
        return dict(self._tensors), dict(self._made)

    def restore(self, contents: "Contents") -> bool:
        """Returns to these contents, and drops all else; returns whether anything was made since."""
        tensors, made = contents
        # by identity: a tensor that has grown since is a new one
        before = {id(kept) for kept in (*tensors.values(), *made.values())}
        anything_new = any(id(kept) not in before for kept in (*self._tensors.values(), *self._made.values()))
        self._tensors, self._made = dict(tensors), dict(made)
        return anything_new

    def clear(self) -> None:
        """Drops everything."""
        self._tensors.clear()
        self._made.clear()


Contents = tuple[dict[str, Tensor], dict[Hashable, Any]]
"""A workspace's tensors, and the objects that `once` keeps."""


def _tensors_in(kept: Any) -> Iterator[Tensor]:
    """What is kept, if it is a tensor; or the tensors of a tuple or a list."""
    if torch.is_tensor(kept):
        yield kept
    elif type(kept) in (tuple, list):
        for each in kept:
            yield from _tensors_in(each)


class _OfThread(threading.local):
    """A thread's scratch, by device and stream: what two streams do is in no order."""

    def __init__(self) -> None:
        self.by_stream: dict[tuple[torch.device, int], Workspace] = {}


_scratch = _OfThread()


def scratch_on(device: torch.device) -> Workspace:
    """This thread's scratch on the current stream: temporaries of a call, and tables that kernels read."""
    kept, key = _scratch.by_stream, (device, stream_of(device))
    if key not in kept:
        kept[key] = Workspace(device)
    return kept[key]
