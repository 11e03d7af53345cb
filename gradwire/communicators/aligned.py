"""Values at coordinates that all ranks share: they may be all-reduced."""

import torch
from torch import Tensor

from gradwire.collective import Sum
from gradwire.compressors import GroupContext, Reduction


def sum_values(x: Tensor, indices: Tensor, filled: Tensor, out: Tensor, context: GroupContext) -> Reduction:
    """Sums x[indices] over the ranks into out (n,), zero elsewhere, and takes them out of x. indices: (m,) int64, equal
    on all ranks and each once among those that are `filled` (m,) bool; the others count for nothing."""
    message = context.numbers("values", len(indices))
    values = torch.index_select(x, 0, indices, out=message.body).mul_(filled)
    x.index_add_(0, indices, values, alpha=-1)
    yield Sum(message)
    out.zero_().index_add_(0, indices, values)
