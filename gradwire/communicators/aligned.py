"""Values at coordinates that all ranks share: they may be all-reduced."""

from torch import Tensor

from gradwire.collective import Sum
from gradwire.compressors import Reduction, State


def sum_values(x: Tensor, indices: Tensor, meant: Tensor, state: State) -> Reduction:
    """Sums x[indices] over the ranks and returns the mean (n,), zero elsewhere. indices: (m,) int64, equal on all
    ranks; those for which `meant` (m,) bool is False count for nothing."""
    payload = state.kept.tensor("values", (len(indices) + 1,))
    values = payload[:-1]
    values.copy_(x[indices]).mul_(meant)
    payload[-1:].copy_(state.flag)
    yield Sum(payload)
    state.settle(payload[-1:])
    mean = state.kept.tensor("mean", (len(x),))
    return mean.zero_().index_add_(0, indices, values)


def release_values(x: Tensor, indices: Tensor, meant: Tensor, state: State) -> None:
    """Takes x[indices] out of x at the end of the step."""
    state.release(x, indices, x[indices].mul_(meant))
