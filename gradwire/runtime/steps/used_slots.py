"""Slots that some rank had a gradient for in a step; the others keep their state."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.ops.host import to_device
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.steps.pipeline import Pipeline
from gradwire.runtime.worker.executor import Executor


class UsedSlots:
    """The slots of a job that were used in its last step: all of them, unless ranks `find_unused` ones."""

    def __init__(self, slots: int, pipeline: Pipeline, executor: Executor, find_unused: bool) -> None:
        self._pipeline = pipeline
        self._executor = executor
        self._find_unused = find_unused
        self._all = torch.ones(slots, dtype=torch.float32, device=executor.device)
        self._last: Callable[[], Tensor] | None = None

    def agree(self, exchanges: Sequence[GroupExchange]) -> Tensor:
        """1 for each slot (slots,) that had a gradient on some rank in the step of these groups, else 0. All ranks call
        this together, on the worker."""
        if not self._find_unused:
            return self._all
        # this rank's: 0 where it had no gradient
        used = torch.ones(len(self._all), dtype=torch.float32, device="cpu")
        for exchange in exchanges:
            for slot in exchange.input.absent:
                used[exchange.stored.slots[slot]] = 0
        # any rank's
        used = to_device(used, self._executor.device)
        self._pipeline.sum(used)
        used.clamp_(max=1)
        self._last = self._executor.on_host(used)
        return used

    def has(self, slot: int) -> bool:
        """Whether any rank had a gradient for the slot in the last step."""
        return self._last is None or bool(self._last()[slot])
