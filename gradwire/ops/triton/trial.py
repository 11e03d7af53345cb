"""A trial of the kernels on a device, against the reference, before they are used there."""

import torch
from torch import Tensor

from gradwire.ops.backend import REFERENCE, Backend
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, nearest
from gradwire.ops.noise import Seed, hashed_draws
from gradwire.ops.reference.low_rank import COLUMNS, ROWS
from gradwire.ops.triton import TRITON

N = 5000


def differences(device: torch.device) -> str:
    """The names of the trials whose results are wrong on this device; "" where all are right. Waits for the device.

    The host computes the right results: a GPU's own products may be set to round to fewer bits."""
    # the same numbers here and on the host
    host = torch.randn(2, N, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
    here = host.to(device)
    # compare
    wrong = [
        name
        for name, run in RUNS.items()
        if not torch.allclose(run(TRITON, *here).cpu(), run(REFERENCE, *host), atol=1e-5)
    ]
    return " and ".join(wrong)


def _codes(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The error that is left, and the decoded values, of codes."""
    layout, result = Blocks((N // 3, N - N // 3), nearest(4)), torch.zeros(2, N, dtype=torch.float32, device=old.device)
    payload = torch.zeros(1, layout.nbytes, dtype=torch.uint8, device=old.device)
    kernels.add_quantise(result[0], old, gradient, 0.9, 0.5, [layout], payload, keep=True, seeds=[Seed(0)])
    kernels.decode_blocks(payload.repeat(1, 2, 1), result[1], [layout])
    return result


def _entries(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The error that is left, and the decoded and unpacked values, of exact values and of levels."""
    result = torch.zeros(2, 2, N, dtype=torch.float32, device=old.device)
    for (left, out), layout in zip(result, (Entries(N, N // 50), Entries(N, N // 50, 4)), strict=True):
        payload = torch.zeros(1, layout.nbytes, dtype=torch.uint8, device=old.device)
        kernels.add_select(left, old, gradient, 0.9, 0.5, [layout], payload)
        kernels.decode_entries(payload.repeat(1, 2, 1), out, [layout])
        out.index_add_(0, *kernels.unpack_entries(payload, layout))
    return result


def _largest(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The indices of the largest elements."""
    return kernels.top_k(old, N // 50).float()


def _casts(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The error that is left, and the values that are sent, of casts."""
    left, rows = old.clone(), torch.zeros(3, N, dtype=torch.float16, device=old.device)
    kernels.cast_parts(left, rows, (0, 2000, 4000, N), 1.0, keep=True)
    return torch.cat([left, rows.float().view(-1)])


def _factors(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Renewed factors, of which the first is zero; then the projections on the basis made from each."""
    vector = old[:300].clone()
    batches, before = ([x[:240].view(2, 4, 30), x[240:300].view(1, 2, 30)] for x in (vector, gradient))
    batches[0][0].zero_()
    result = [kernels.renew(batches, before), vector.clone()]
    kernels.orthogonalize(batches)
    bases = [batch.cpu() for batch in batches]
    return torch.cat([*(part.cpu() for part in result), *((basis.mT @ basis).flatten() for basis in bases)])


def _products(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Both projections of matrices of two shapes, the products of these factors, and the matrices less the products."""
    left, right, p, q = (
        old[:980].clone(),
        old[:980].clone(),
        torch.zeros(135, dtype=torch.float32, device=old.device),
        gradient[:300] / 10,
    )
    matrices, products = ([x[:800].view(2, 10, 40), x[800:].view(1, 15, 12)] for x in (left, right))
    # views of two batches
    lower, upper = [p[:60].view(2, 3, 10), p[60:].view(1, 5, 15)], [q[:240].view(2, 3, 40), q[240:].view(1, 5, 12)]
    kernels.project(matrices, upper, lower, ROWS)
    kernels.multiply([[product] for product in products], lower, upper, subtract=False)
    kernels.multiply([[matrix] for matrix in matrices], lower, upper, subtract=True)
    kernels.project(products, lower, upper, COLUMNS)
    return torch.cat([left, right, p, q])


def _draws(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Of the second step; a CPU draws others by itself."""
    seed = Seed(0, salt=12345, word=torch.ones(1, dtype=torch.int64, device=old.device))
    return (hashed_draws if kernels is REFERENCE else kernels.draws)(N, seed, old.device)


RUNS = {
    "codes": _codes,
    "entries": _entries,
    "largest": _largest,
    "casts": _casts,
    "factors": _factors,
    "products": _products,
    "draws": _draws,
}
