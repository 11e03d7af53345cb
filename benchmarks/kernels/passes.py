"""Whole passes of kernels, for any implementation and device: a gradient is added to the residual, encoded and packed,
and the next residual is written; or payloads are decoded and added up."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.ops.backend import Backend
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Code, nearest, one_bit, qsgd, sign, ternary
from gradwire.ops.noise import Seed

RANKS = 8
WIDTH = 4608


class Pass(NamedTuple):
    """One pass over n elements."""

    name: str
    run: Callable[[Backend], Tensor]
    """Returns what it has written, or some of it."""
    nbytes: int
    """The bytes that it must read and write, and no fewer."""


def passes(n: int, device: torch.device, ops: Backend) -> Iterator[Pass]:
    """All passes, on payloads that `ops` has encoded."""
    generator = torch.Generator().manual_seed(0)
    old, gradient = (torch.randn(n, generator=generator).to(device) for _ in range(2))
    next = torch.empty_like(old)
    # read residual and gradient, write the next residual; or write the mean
    encoded, decoded = 12 * n, 4 * n
    yield Pass("add in", writing(next, lambda ops: ops.add_in(next, old, gradient, 1.0, 0.125)), encoded)
    for name, entries in {
        "top-k 1 %": Entries(n, n // 100), "top-k 0.1 %": Entries(n, n // 1000),
        "top-k 1/16, 10 bits": Entries(n, n // 16, 4),
    }.items():  # fmt: skip
        yield Pass(name, selecting(next, old, gradient, entries), encoded + entries.nbytes)
        rows = entry_rows(old, entries, ops)
        yield Pass(f"decode {RANKS}, {name}", summing_entries(next, rows, entries), decoded + rows.nbytes)
    matrix = old[: n // WIDTH * WIDTH].view(-1, WIDTH)
    yield Pass(f"top-k 1 % of each {WIDTH}", lambda ops: ops.top_k_each([matrix], WIDTH // 100, 1)[0], matrix.nbytes)
    for name, code in codes().items():
        blocks = Blocks((n,), code)
        yield Pass(name, quantising(next, old, gradient, blocks), encoded + blocks.nbytes)
        rows = block_rows(old, blocks, ops)
        yield Pass(f"decode {RANKS}, {name}", summing_blocks(next, rows, blocks), decoded + rows.nbytes)


def codes() -> dict[str, Code]:
    return {
        "8 bits, stochastic, blocks of 1024": qsgd(), "8 bits, nearest, blocks of 128": nearest(8, 128),
        "4 bits, nearest, blocks of 256": nearest(4, 256), "4 bits, nearest, blocks of 64": nearest(4),
        "ternary, blocks of 1024": ternary(), "signs, blocks of 256": sign(), "one bit, blocks of 4096": one_bit(),
    }  # fmt: skip


def writing(out: Tensor, run: Callable[[Backend], object]) -> Callable[[Backend], Tensor]:
    """A pass that writes to `out`."""

    def written(ops: Backend) -> Tensor:
        run(ops)
        return out

    return written


def selecting(next: Tensor, old: Tensor, gradient: Tensor, layout: Entries) -> Callable[[Backend], Tensor]:
    payload = torch.zeros(layout.nbytes, dtype=torch.uint8, device=old.device)
    return writing(next, lambda ops: ops.add_select(next, old, gradient, 1.0, 0.125, [layout], payload[None]))


def quantising(next: Tensor, old: Tensor, gradient: Tensor, layout: Blocks) -> Callable[[Backend], Tensor]:
    payload, seeds = torch.zeros(layout.nbytes, dtype=torch.uint8, device=old.device), [seed_on(old.device)]
    return writing(
        next,
        lambda ops: ops.add_quantise(
            next, old, gradient, 1.0, 0.125, [layout], payload[None], keep=True, seeds=seeds
        ),
    )  # fmt: skip


def seed_on(device: torch.device) -> Seed:
    """As a job makes it, with the word that counts steps."""
    return Seed(1, 1, torch.zeros(1, dtype=torch.int64, device=device))


def summing_entries(out: Tensor, rows: Tensor, layout: Entries) -> Callable[[Backend], Tensor]:
    return writing(out, lambda ops: ops.sum_entries(rows[None], out, [layout]))


def summing_blocks(out: Tensor, rows: Tensor, layout: Blocks) -> Callable[[Backend], Tensor]:
    return writing(out, lambda ops: ops.sum_blocks(rows[None], out, [layout]))


def entry_rows(x: Tensor, layout: Entries, ops: Backend) -> Tensor:
    """The payloads of all ranks; each rank encodes x rolled by another number of places."""
    rows = torch.zeros(RANKS, layout.nbytes, dtype=torch.uint8, device=x.device)
    for rank, row in enumerate(rows):
        ops.add_select(torch.empty_like(x), x.roll(rank * 12_345), None, 1.0, 0.0, [layout], row[None])
    return rows


def block_rows(x: Tensor, layout: Blocks, ops: Backend) -> Tensor:
    """The same in blocks of codes."""
    rows, seeds = torch.zeros(RANKS, layout.nbytes, dtype=torch.uint8, device=x.device), [seed_on(x.device)]
    for rank, row in enumerate(rows):
        x_of_rank, next = x.roll(rank * 12_345), torch.empty_like(x)
        ops.add_quantise(next, x_of_rank, None, 1.0, 0.0, [layout], row[None], keep=False, seeds=seeds)
    return rows
