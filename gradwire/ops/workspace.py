"""Buffers that are made once and kept."""

import threading
from collections.abc import Callable, Hashable
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Workspace:
    """Tensors that are made once and kept by name, so that nothing of gradient size is allocated per step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: dict[str, Tensor] = {}
        self._made: dict[Hashable, Any] = {}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor kept as `name`, seen in this shape; it holds what was last written to it."""
        numel = prod(shape)
        kept = self._tensors.get(name)
        if kept is None or kept.numel() < numel or kept.dtype != dtype:
            kept = self._tensors[name] = torch.zeros(numel, dtype=dtype, device=self.device)
        return kept[:numel].view(shape)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when it was first called for `key`: the views of a whole group, say."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def kept(self, key: Hashable) -> Any | None:
        """The object that `once` keeps for `key`; None where there is none yet."""
        return self._made.get(key)

    def forget_views(self) -> None:
        """Has `once` make everything anew, for another algorithm works here from now on; the tensors stay."""
        self._made.clear()

    def contents(self) -> "Contents":
        """All that is kept now."""
        return dict(self._tensors), dict(self._made)

    def restore(self, contents: "Contents") -> bool:
        """Keeps what was kept then, and nothing else; returns whether anything was made since."""
        tensors, made = contents
        before = {id(kept) for kept in (*tensors.values(), *made.values())}
        anything_new = any(id(kept) not in before for kept in (*self._tensors.values(), *self._made.values()))
        self._tensors, self._made = dict(tensors), dict(made)
        return anything_new

    def clear(self) -> None:
        """Gives up all tensors and what was made of them."""
        self._tensors.clear()
        self._made.clear()


Contents = tuple[dict[str, Tensor], dict[Hashable, Any]]
"""A workspace's tensors, and the objects that `once` keeps."""


class _OfThread(threading.local):
    """The scratch of a thread by device."""

    def __init__(self) -> None:
        self.by_device: dict[torch.device, Workspace] = {}


_scratch = _OfThread()


def scratch_on(device: torch.device) -> Workspace:
    """This thread's room for what is needed within a call, and for what kernels look up."""
    kept = _scratch.by_device
    if device not in kept:
        kept[device] = Workspace(device)
    return kept[device]
