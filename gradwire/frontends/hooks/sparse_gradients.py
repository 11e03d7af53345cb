"""Parameters whose gradients are sparse."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from gradwire.compressors import Compressor, Quantized
from gradwire.memories import NoMemory, Residual
from gradwire.notation import read
from gradwire.options import one_line
from gradwire.runtime.job_options import ONLY_SPARSE
from gradwire.runtime.state.row_memory import PLAIN_ROWS, RowScheme
from gradwire.slots import Slot
from gradwire.transports import Mesh


def sparse_in(model: nn.Module, parameters: Mapping[str, Tensor]) -> set[str]:
    """The names of a model's parameters whose gradients are sparse: the weights of Embedding(sparse=True) and
    EmbeddingBag(sparse=True), as DDP has it."""
    weights = {m.weight for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse}
    return {name for name, parameter in parameters.items() if parameter in weights}


def no_rows(parameter: Tensor) -> Tensor:
    """A sparse gradient of zero."""
    parameter = parameter.detach()
    indices, rows = parameter.new_empty((1, 0), dtype=torch.int64), parameter.new_empty((0, *parameter.shape[1:]))
    return torch.sparse_coo_tensor(indices, rows, parameter.shape, is_coalesced=True, check_invariants=False)


def check_sparse(
    sparse: Collection[str], dense: Collection[Slot], rows: object = None, mesh: Mesh | None = None
) -> None:
    """Raises ValueError where sparse gradients cannot travel beside dense ones, and for `rows` where there are none."""
    if sparse and mesh and mesh.host:
        raise ValueError(
            f"parameter {min(sparse)!r} has a sparse gradient, which is not summed inside hosts; use "
            "transport=gw.ProcessGroup.own(), or Embedding(sparse=False)"
        )
    if rows is not None and not sparse:
        raise ValueError("rows= is for Embedding(sparse=True), and the model has none; leave it out")
    if sparse and not dense:
        raise ValueError(ONLY_SPARSE)


def row_way(rows: Compressor | str | None) -> RowScheme:
    """How a user has rows sent: by a compressor, or a text that may name a memory as well. Raises ValueError for what
    rows are not sent by."""
    if rows is None:
        return PLAIN_ROWS
    (compressor, memory, *others), groups = read(rows) if isinstance(rows, str) else ((rows, None), None)
    if any(part is not None for part in (*others, groups)):
        raise ValueError(f"rows have a compressor and a memory, and rows={rows!r} has more; leave that out")
    memory = memory or NoMemory()
    if not isinstance(compressor, Quantized) or memory not in (NoMemory(), Residual()):
        raise ValueError(
            f"rows of sparse gradients travel as they are, or in few bits, not by rows={one_line(rows)}; use "
            'rows=gw.Quantized(8) or rows="quantized:4+residual"'
        )
    return compressor, memory
