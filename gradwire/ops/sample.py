"""A few small matrices that stand for all of a step's gradients."""

from collections.abc import Mapping

from torch import Tensor

MATRICES, SIDE = 3, 192


def sampled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of at most 3 of the tensors that have rows and columns, the first one and others at equal distances, each
    as a matrix of at most 192 rows and columns that lie as evenly."""
    matrices = [name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.numel()]
    return {name: _thinned(tensors[name].flatten(1)) for name in matrices[:: -(-len(matrices) // MATRICES) or 1]}


def _thinned(matrix: Tensor) -> Tensor:
    rows, columns = (-(-length // SIDE) for length in matrix.shape)
    return matrix[::rows, ::columns].float().clone()
