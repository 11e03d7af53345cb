"""The verdict on a step, the same on all ranks: it counts where the gradients of all groups were finite on all of
them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.steps.pipeline import Pipeline
from gradwire.runtime.worker.executor import Executor
from gradwire.torch_private.foreach import add_to_each


class StepVerdict:
    """The verdict on the last step, which a GPU has ready some time after the step. On the worker."""

    def __init__(self, pipeline: Pipeline, executor: Executor) -> None:
        self._pipeline = pipeline
        self._executor = executor
        self._nonfinite = self._each = torch.zeros(1, dtype=torch.float32, device=executor.device)
        self._awaited: Callable[[], Tensor] | None = None

    def agree(self, exchanges: Sequence[GroupExchange]) -> None:
        """Sums the groups' `nonfinite`. Ranks with different shards have one verdict, too."""
        self._each = torch.cat([exchange.nonfinite for exchange in exchanges])
        self._nonfinite = self._each.sum(0, keepdim=True)
        self._pipeline.sum(self._nonfinite, self._pipeline.mesh.divided)

    def add_abort(self) -> Tensor:
        """Adds NaN where collectives were aborted, which on a GPU leave garbage. Returns the verdict (1,): NaN where
        the step does not count, else 0."""
        return self._nonfinite.add_(self._executor.nan_if_aborted())

    def poison(self, exchanges: Sequence[GroupExchange]) -> None:
        """Makes the means NaN where the step does not count."""
        # on a GPU NaN or 0 is added to one element of each: so the host need not read it
        if not self._executor.is_immediate:
            add_to_each([first for exchange in exchanges for first in exchange.firsts()], self._nonfinite)
        elif not self._nonfinite.isfinite():
            for exchange in exchanges:
                exchange.poison()

    def fetch(self) -> None:
        """Begins to copy the verdict to the host."""
        self._awaited = self._executor.on_host(torch.cat([self._nonfinite, self._each]), ends_step=True)

    def read(self) -> list[bool] | None:
        """Whether the step counts, then for each group whether it was finite; None where the verdict was read before.
        Waits for a GPU. Where the GPU has failed this raises, and so does the next call."""
        if self._awaited is None:
            return None
        read = self._awaited().isfinite().tolist()
        self._awaited = None
        return read
