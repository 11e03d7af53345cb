"""Rehearsals: the statistical efficiency of compressors on a job's gradients, measured without a network.

A rank alone sends a few small gradients in turns, with its memory, until its residual has stopped growing. The share
of gradient and residual that is left gives the efficiency of a step (`gradwire.controllers.gain`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from gradwire.controllers.gain import efficiency_of
from gradwire.controllers.recompress import with_options
from gradwire.memories import RESIDUAL
from gradwire.ops.gradients import Gradients
from gradwire.plans import Group
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.plan_exchanges import exchange_of
from gradwire.schedule.sent_bytes import STEADY
from gradwire.slots import Slot
from gradwire.transports import Mesh, SizeRecorder

STEPS = 64
"""In 32 the residual of low rank was half of its final size; top-k's has settled by then."""
SIDE, KINDS = 256, 8
"""Side and number of made-up gradients, (SIDE, SIDE)."""
SCALE = 1e-3
"""Of made-up gradients: votes are numbers of another size than gradients, with which no step makes progress."""


def efficiency(way: Group, gradients: Sequence[Mapping[str, Tensor]], shrunk: float = 1.0) -> float:
    """The progress, in dense steps, of a step that sends `gradients` in this way: those of some steps, matrices of
    `shrunk` times their real sides; without any, made-up ones."""
    # gradients that can be judged by; casts lose nothing
    finite = [step for step in gradients if step and all(each.isfinite().all() for each in step.values())]
    if way.compressor.is_cast:
        return 1.0
    return efficiency_of(share(_shrunk(way, shrunk), finite)) if finite else expected(way)


@cache
def expected(way: Group) -> float:
    """`efficiency` by made-up gradients, which are low-rank and heavy-tailed like real ones."""
    return efficiency(way, [{"made up": gradient} for gradient in made_up()])


def share(way: Group, gradients: Sequence[Mapping[str, Tensor]]) -> float:
    """The share of the energy of gradient and residual that is sent, once the residual is steady."""
    # one group of all gradients, on a rank alone
    vectors = [torch.cat([each.flatten() for each in step.values()]) for step in gradients]
    slots = [Slot.of(name, each) for name, each in gradients[0].items()]
    group, alone = replace(way, slots=tuple(slot.name for slot in slots)), Mesh.of(SizeRecorder(1))
    exchange = exchange_of(group, slots, alone, vectors[0].device)
    whole = left = 0.0
    for step in range(STEPS):
        kept, sent = _send(exchange, vectors[step % len(vectors)], step)
        # the second half of the steps, when the residual is steady
        if step >= STEPS // 2:
            whole += float((kept + sent).double().square().sum())
            left += float(kept.double().square().sum())
    return max(0.0, 1 - left / whole) if whole else 1.0


def made_up() -> list[Tensor]:
    """Gradients (256, 256) of 8 steps: singular values that fall like 1/i, a half of each vector the same at every
    step, rows and columns of different size."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")

    # singular values, and rows and columns of different size
    values = SCALE / torch.arange(1, SIDE + 1, dtype=torch.float32, device="cpu")
    rows, columns = draw(SIDE, 1).mul_(0.5).exp_(), draw(1, SIDE).mul_(0.5).exp_()
    # singular vectors that all steps share, by half
    left, right = draw(SIDE, SIDE), draw(SIDE, SIDE)

    def vary(always: Tensor) -> Tensor:
        return 0.5 * always + 0.75**0.5 * draw(SIDE, SIDE)

    return [rows * ((vary(left) * values) @ vary(right)) * columns for _ in range(KINDS)]


def _send(exchange: GroupExchange, gradient: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """One step: the part of gradient and residual that is left (n,), and the part that was sent."""
    sent = gradient.clone()
    # one rank alone: each collective gives back what it was sent
    for op in exchange.run(GroupInput(Gradients.of_vector(exchange.stored.layout, sent)), STEADY + step):
        if op is not None:
            SizeRecorder(1).start(op)
    exchange.commit()
    if not exchange.group.memory.error_feedback:
        return gradient - sent, sent
    # the residual, as numbers
    kept = exchange.stored.flat[RESIDUAL].read
    return exchange.stored.parts[RESIDUAL].numbers_of(kept, exchange.context.scratch), sent


def _shrunk(way: Group, by: float) -> Group:
    """The same for matrices of `by` times their sides: ranks that count rows are fewer."""
    rank = getattr(way.compressor, "rank", 0)
    if rank < 1:
        return way
    return replace(way, compressor=with_options(way.compressor, {"rank": max(1, round(by * rank))}))
