"""Sums of values at coordinates that all ranks share, by all-reduce."""

import torch
from torch import Tensor

from gradwire.collective import Sum
from gradwire.compressors import GroupContext, Reduction


def sum_values(x: Tensor, indices: Tensor, filled: Tensor, out: Tensor, context: GroupContext) -> Reduction:
    """Writes the sum of x[indices] over the ranks to out (n,), zero elsewhere, and subtracts from x (n,) what it sent.

    indices (m,) int64 are equal on all ranks; entries that are not `filled` (m,) bool count as zero, of the others no
    index comes twice.
    """
    # move the values out of x
    message = context.numbers("values", len(indices))
    values = torch.index_select(x, 0, indices, out=message.body).mul_(filled)
    x.index_add_(0, indices, values, alpha=-1)
    # sum them over the ranks
    yield Sum(message)
    out.zero_().index_add_(0, indices, values)
