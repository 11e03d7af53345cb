"""Buffers that are made once and kept."""

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

    def forget_views(self) -> None:
        """Has `once` make everything anew, for another algorithm works here from now on; the tensors stay."""
        self._made.clear()

    def clear(self) -> None:
        """Gives up all tensors and what was made of them."""
        self._tensors.clear()
        self._made.clear()
