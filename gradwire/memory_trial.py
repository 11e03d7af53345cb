"""A trial of a user's memory on a few numbers, before gradients go through it."""

from functools import lru_cache

import torch

from gradwire.compressors import DoubleBuffer
from gradwire.importing import is_users
from gradwire.memories import RESIDUAL, Memory
from gradwire.ops.lazy_sum import LazySum
from gradwire.slots import Layout, Slot

LAYOUT = Layout((Slot("tried", (8, 8), (8, 1), torch.float32),))

UNWRITTEN = torch.finfo(torch.float32).max
"""In buffers before they are written."""


@lru_cache(1024)
def try_memory(memory: Memory) -> None:
    """Tries a user's memory, once, in a step that sends everything. Raises ValueError where it changes what the step
    only reads, leaves out what it writes, or keeps a residual of what was sent."""
    name = type(memory).__name__
    if not (is_users(memory) and memory.error_feedback):
        return
    generator, n = torch.Generator().manual_seed(0), LAYOUT.numel
    gradient, *old = torch.randn(1 + len(memory.flat_state), n, dtype=torch.float32, device="cpu", generator=generator)
    # second moments are never negative
    kept = {kind: x if kind == RESIDUAL else x.abs() for kind, x in zip(memory.flat_state, old, strict=True)}
    flat = {kind: DoubleBuffer(x.clone(), torch.full_like(x, UNWRITTEN)) for kind, x in kept.items()}
    try:
        with torch.random.fork_rng(devices=[]):
            memory.add(flat, LazySum(flat[RESIDUAL].write, None, gradient, weight=0.5), LAYOUT, 2).total().zero_()
            memory.sent(flat)
    except Exception:  # it may need other gradients than these; where it does not, steps say what is wrong
        return
    for kind, (read, write) in flat.items():
        if not torch.equal(read, kept[kind]):
            raise ValueError(
                f"{name} changes flat[{kind!r}].read, to which a step that fails goes back; write to "
                f"flat[{kind!r}].write"
            )
        if (write == UNWRITTEN).any():
            raise ValueError(
                f"{name} does not write flat[{kind!r}].write, the next step's {kind}; write all of it in add() or "
                f"sent(), as by gradient.onto(*flat[{kind!r}], decay)"
            )
    if flat[RESIDUAL].write.any():
        raise ValueError(
            f"{name}'s residual is not zero after all was sent; add() is to return the sum that lies in the residual's "
            f"buffer: call .onto(*flat[{RESIDUAL!r}]) last"
        )
