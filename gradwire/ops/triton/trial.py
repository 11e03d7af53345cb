"""A trial of the kernels on a device, against the reference, before they are used there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.ops.backend import REFERENCE, Backend
from gradwire.ops.entries import EliasFano, Entries
from gradwire.ops.formats import Blocks, Code, nearest, one_bit, qsgd, shared_exponent, sign, ternary
from gradwire.ops.host import on_host
from gradwire.ops.noise import Seed, hashed_draws
from gradwire.ops.reference.products import COLUMNS, ROWS
from gradwire.ops.slices import SliceEntries, Slices
from gradwire.ops.triton import TRITON
from gradwire.ops.triton.launching import side_by_side
from gradwire.process_limits import cores

N, RANKS = 5000, 6
CODES = (nearest(4), nearest(8, 128), nearest(3), sign(), one_bit(1024))
WITH_NOISE = (qsgd(), ternary(64), shared_exponent())


class Trial(NamedTuple):
    """A trial of some functions."""

    run: Callable[[Backend, Tensor, Tensor], Tensor]
    """Computes with a backend and two vectors (N,); all numbers of the result are to be right."""
    functions: tuple[str, ...]
    """The functions of `Backend` that launch the kernels that it tries."""


def tried(device: torch.device) -> tuple[Backend, str]:
    """Triton's functions, with the reference's in place of any that are wrong on this device; and which these are.
    Waits for the device. Raises the first error where all fail, as without a C compiler.

    The host computes the right results: a GPU's own products may be set to round to fewer bits."""
    # the same numbers here and on the host
    host = torch.randn(2, N, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
    here = host.to(device)
    # compare, in threads, for compiling takes longest; Triton's interpreter does one after another
    count, compiling = (1, nullcontext()) if on_host(device) else (max(1, int(cores())), side_by_side())
    with compiling, ThreadPoolExecutor(count) as threads:
        differences = threads.map(lambda trial: _difference(trial, here, host), TRIALS.values())
        found = dict(zip(TRIALS, differences, strict=True))
    # compilers may not like threads
    found |= {name: _difference(TRIALS[name], here, host) for name, (_, error) in found.items() if error}
    wrong = {name: why for name, (why, _) in found.items() if why}
    if len(errors := [error for _, error in found.values() if error]) == len(TRIALS):
        raise errors[0]
    names = [name for trial in wrong for name in TRIALS[trial].functions]
    why = ", ".join(f"{trial} ({why})" for trial, why in wrong.items())
    return (
        replace(TRITON, **{name: getattr(REFERENCE, name) for name in names}),
        f"torch computes {why}" if wrong else "",
    )


def _difference(trial: Trial, here: Tensor, host: Tensor) -> tuple[str, Exception | None]:
    """Why the results are not right, "" where they are; and the error where there are none."""
    try:
        ours, right = trial.run(TRITON, *here).cpu(), trial.run(REFERENCE, *host)
    except Exception as error:
        return str(error) or type(error).__name__, error
    return "" if torch.allclose(ours, right, atol=1e-5) else "Triton is wrong here", None


def _sums(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """A sum, of which what is zero in another vector is masked."""
    out = torch.empty_like(old)
    kernels.add_in(out, old, gradient, 0.9, 0.5)
    kernels.mask_zeros(out, gradient.clamp(min=0))
    return out


def _rounded(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Whether rounded numbers are neighbours, for the host has other noise; and numbers that bfloat16 holds."""
    out = torch.empty_like(old, dtype=torch.bfloat16)
    kernels.round_stochastically(old.clone(), out, Seed(1))
    close = (out - old).abs() <= 2.0**-7 * old.abs()
    kernels.round_stochastically(gradient.bfloat16().float(), out, Seed(1))
    return torch.cat([close.float(), out.float()])


def _codes(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The error that is left, and the decoded values, of codes."""
    return torch.stack([torch.stack(_coded(kernels, code, old, gradient)) for code in CODES])


def _noise(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Sums of errors and decoded values of codes with noise, which differs on the host."""
    coded = [_coded(kernels, code, old, gradient) for code in WITH_NOISE]
    return torch.stack([errors + decoded for errors, decoded in coded])


def _coded(kernels: Backend, code: Code, old: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of the errors (N,) and of the payloads (N,) of RANKS that differ."""
    layout, (error, errors, out) = Blocks((N // 3, N - N // 3), code), torch.zeros_like(old).repeat(3, 1)
    payloads = torch.zeros(1, RANKS, layout.nbytes, dtype=torch.uint8, device=old.device)
    for rank in range(RANKS):
        x = gradient.roll(rank)
        kernels.add_quantise(error, old, x, 0.9, 0.5, [layout], payloads[:, rank], keep=True, seeds=[Seed(0)])
        errors += error
    # sum over the ranks
    kernels.sum_blocks(payloads, out, [layout])
    return errors, out


def _entries(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The error of one rank, and the sum of two payloads that differ and the unpacked last one, of exact
    values and of levels; of so many elements that several programs sum them."""
    n = 4 * N
    result = torch.zeros(2, 2, n, dtype=torch.float32, device=old.device)
    for (left, out), layout in zip(result, (Entries(n, n // 50), Entries(n, n // 50, 4)), strict=True):
        payloads = torch.zeros(1, 2, layout.nbytes, dtype=torch.uint8, device=old.device)
        for rank in range(2):
            x = gradient.roll(rank).repeat(4) * torch.linspace(1, 2, n, dtype=torch.float32, device=old.device)
            kernels.add_select(left, old.repeat(4), x, 0.9, 0.5, [layout], payloads[:, rank])
        # sum over the ranks; unpack the last payload
        kernels.sum_entries(payloads, out, [layout])
        out.index_add_(0, *kernels.unpack_entries(payloads[0, -1:], layout))
    return result


def _packed(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """A vector whose elements were moved to a payload, that payload, and those of given values and of places."""
    indices, left = torch.arange(1, N, 50, dtype=torch.int64, device=old.device)[None], old[None].clone()
    layout, places = Entries(N, N // 50), EliasFano(N, N // 50)
    rows = [torch.zeros(1, each.nbytes, dtype=torch.uint8, device=old.device) for each in (layout, layout, places)]
    # pack in three ways
    kernels.move_entries(left, rows[0], layout, indices)
    kernels.pack_entries(rows[1], layout, indices, gradient[indices])
    kernels.pack_indices(rows[2], places, indices)
    found, filled = kernels.unpack_indices(rows[2], places)
    return torch.cat([left.flatten(), *(row.flatten().float() for row in rows), found[filled].float()])


def _largest(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The indices of the largest elements, of many that are equal, and of several programs."""
    found = [kernels.top_k(x, k) for x, k in ((old, 100), (old.round(), N // 4), (old.repeat(9), 3000))]
    # fewer than are wanted: the others may be any
    few = torch.where(gradient > 2, old, 0.0)
    found.append(few[kernels.top_k(few, N // 10)].abs().sum()[None])
    return torch.cat(found)


def _slices(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The indices of the largest elements of rows and of columns, with many that are equal; those of others, in order;
    and of several matrices a vector from which they were moved, the payload, and its sum with itself."""
    rounded = (4 * old).round().view(10, 500)
    found: list[Tensor] = [kernels.top_k_each([rounded], k, axis)[0] for k, axis in ((20, 1), (3, 0))]
    found += kernels.largest_first(gradient.abs().view(10, 500), 20)
    # slices of several matrices, along both axes
    shapes = ((0, 2, 1100, 11, 1), (2200, 20, 100, 1, 0), (4200, 1, 800, 8, 1))
    layout = SliceEntries.of(Slices(*shape) for shape in shapes)
    left = old.clone()
    out = torch.empty_like(old)
    payload = torch.zeros(layout.nbytes, dtype=torch.uint8, device=old.device)
    # move the largest, and sum what was moved twice
    kernels.move_slices(left, payload, layout)
    kernels.sum_slices(payload.repeat(2, 1), out, layout)
    return torch.cat([*(each.flatten() for each in found), left, payload.float(), out])


def _words(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Words of 12 bits."""
    words = ((1000 * old[:4000].abs()).to(torch.int64) % 4096).view(2, 5, 400)
    codes = torch.zeros(2, 5, 600, dtype=torch.uint8, device=old.device)
    kernels.pack_words(words, 12, codes)
    return kernels.unpack_words(codes, 12, 400).float()


def _casts(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """The error that is left, and the values that are sent, of casts."""
    left, rows = old.clone(), torch.zeros(3, N, dtype=torch.float16, device=old.device)
    kernels.cast_parts(left, rows, (0, 2000, 4000, N), 1.0, keep=True)
    # NaN as a GPU makes it
    x = torch.tensor([0x7FFFFFFF, -1, 0x3F800000], dtype=torch.int32, device=old.device).view(torch.float32)
    short = torch.zeros(1, 3, dtype=torch.bfloat16, device=old.device)
    kernels.cast_parts(x, short, (0, 3), inf, keep=False)
    return torch.cat([left, rows.float().view(-1), short.float().nan_to_num(7.0).view(-1)])


def _factors(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Renewed factors, of which the first is zero; then the projections on the basis made from each, and from larger
    ones."""
    vector = old[:300].clone()
    batches, before = ([x[:240].view(2, 4, 30), x[240:300].view(1, 2, 30)] for x in (vector, gradient))
    batches[0][0].zero_()
    result = [kernels.renew(batches, before), vector.clone()]
    kernels.orthogonalize(batches)
    # orthonormalise larger ones
    large = old[:4400].clone().view(2, 20, 110)
    kernels.orthogonalize([large])
    bases = [batch.cpu() for batch in (*batches, large)]
    return torch.cat([*(part.cpu() for part in result), *((basis.mT @ basis).flatten() for basis in bases)])


def _products(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """`_multiplied` of matrices of two shapes, of sizes that 4 divides, and with factors of many rows."""
    shapes = [(2, 10, 40, 3), (1, 15, 12, 5)], [(2, 12, 40, 5)], [(1, 48, 100, 20)]
    return torch.cat([_multiplied(kernels, old, gradient / 10, each) for each in shapes])


def _multiplied(kernels: Backend, x: Tensor, factors: Tensor, shapes: list[tuple[int, int, int, int]]) -> Tensor:
    """Matrices less the products of both factors, these products, and both projections, by (count, rows, columns,
    rank)."""
    matrices, products = (_batches(x, [shape[:3] for shape in shapes]) for _ in range(2))
    p = _batches(torch.zeros_like(x), [(count, rank, rows) for count, rows, _, rank in shapes])
    q = _batches(factors, [(count, rank, columns) for count, _, columns, rank in shapes])
    kernels.project(matrices, q, p, ROWS)
    kernels.multiply([[product] for product in products], p, q, subtract=False)
    kernels.multiply([[matrix] for matrix in matrices], p, q, subtract=True)
    kernels.project(products, p, q, COLUMNS)
    return torch.cat([batch.flatten() for batch in (*matrices, *products, *p, *q)])


def _batches(x: Tensor, shapes: list[tuple[int, int, int]]) -> list[Tensor]:
    """Batches of these shapes, one after another in a copy of x."""
    sizes = [count * rows * columns for count, rows, columns in shapes]
    parts = x[: sum(sizes)].clone().split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _draws(kernels: Backend, old: Tensor, gradient: Tensor) -> Tensor:
    """Of the second step; a CPU draws others by itself."""
    seed = Seed(0, salt=12345, word=torch.ones(1, dtype=torch.int64, device=old.device))
    return (hashed_draws if kernels is REFERENCE else kernels.draws)(N, seed, old.device)


ENTRIES = (
    "add_select", "top_k", "pack_entries", "move_entries", "pack_indices", "sum_entries", "unpack_entries",
    "unpack_indices",
)  # fmt: skip
"""Functions that share kernels: where one is wrong, all may be."""

TRIALS = {
    "sums": Trial(_sums, ("add_in", "mask_zeros")),
    "rounding": Trial(_rounded, ("round_stochastically",)),
    "codes": Trial(_codes, ("add_quantise", "sum_blocks")),
    "codes with noise": Trial(_noise, ("add_quantise", "sum_blocks")),
    "entries": Trial(_entries, ENTRIES),
    "packing": Trial(_packed, ENTRIES),
    "the largest elements": Trial(_largest, ENTRIES),
    "slices": Trial(_slices, ("top_k_each", "largest_first", "move_slices", "sum_slices")),
    "words": Trial(_words, ("pack_words", "unpack_words")),
    "casts": Trial(_casts, ("cast_parts",)),
    "factors": Trial(_factors, ("renew", "orthogonalize")),
    "products": Trial(_products, ("project", "multiply")),
    "draws": Trial(_draws, ("draws",)),
}
