"""A trial of a user's communicator on a few numbers, before gradients go through it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codec_trial import LAYOUT, TOLERANCE
from gradwire.collective import Collective
from gradwire.communicators import Communicator
from gradwire.communicators.flags import flagged
from gradwire.compressors import Compressor, GroupContext, Reduction, context_for
from gradwire.compressors.context import GroupState
from gradwire.importing import is_users
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.transports import Threads

RANKS = 3
"""With two, one neighbour is all others."""
OTHERS = 7.0
"""What other groups write to scratch meanwhile."""


@lru_cache(1024)
def try_communicator(compressor: Compressor, communicator: Communicator, error_feedback: bool) -> None:
    """Tries a user's communicator with a compressor, once. Raises ValueError where the ranks' collectives do not fit
    together, or are others than `rounds` says; where the ranks get other sums, or do not all learn that a gradient was
    not finite; and where what is sent and what is left do not add up to what was given: with `error_feedback`, for then
    its memory would be wrong, and of casts, which leave nothing."""
    if not is_users(communicator):
        return
    try:
        # random numbers of the training stay as they are
        with torch.random.fork_rng(devices=[]):
            ranks = [_Rank.of(rank, compressor, communicator, error_feedback) for rank in range(RANKS)]
            given = torch.stack([rank.x for rank in ranks]).sum(0)
            fault = _reduce(ranks, communicator.rounds(compressor, RANKS))
    except Exception:  # it may need other gradients than these; where it does not, steps say what is wrong
        return
    if fault := fault or _fault_of(ranks, given, error_feedback, compressor.is_cast):
        raise ValueError(f"{type(communicator).__name__}.reduce() {fault}")


@dataclass
class _Rank:
    """A rank that takes part in a trial."""

    context: GroupContext
    x: Tensor
    """(n,) what it gives, then what it has not sent."""
    vector: LazySum
    sum: Tensor
    """(n,) what it gets; NaN before."""
    nonfinite: Tensor
    """(1,) NaN of the last rank, as if its gradients were not finite; then of all that know it."""
    reduction: Reduction

    @classmethod
    def of(cls, rank: int, compressor: Compressor, communicator: Communicator, error_feedback: bool) -> "_Rank":
        generator = torch.Generator().manual_seed(rank)
        x = torch.randn(LAYOUT.numel, dtype=torch.float32, device="cpu", generator=generator)
        state = GroupState({**compressor.init_group(), **communicator.init_group()})
        alone = context_for(LAYOUT, compressor, x.device)
        context = replace(alone, rank=rank, world=RANKS, group=state, error_feedback=error_feedback)
        vector, total = LazySum.of(x), torch.full_like(x, torch.nan)
        nonfinite = torch.full((1,), torch.nan if rank == RANKS - 1 else 0.0, dtype=torch.float32, device="cpu")
        reduction = communicator.reduce(compressor, vector, Mean.of(total), context)
        return cls(context, x, vector, total, nonfinite, flagged(reduction, nonfinite))


def _reduce(ranks: Sequence[_Rank], rounds: int) -> str:
    """Carries out the ranks' collectives, turn by turn; returns what is wrong with them, or ""."""
    transports = Threads.group(RANKS)
    for turn in range(rounds + 1):
        ops: list[Collective | None] = [next(rank.reduction, None) for rank in ranks]
        count = sum(op is not None for op in ops)
        if not count and turn == rounds:
            return ""
        if count < RANKS or turn == rounds:
            return f"yields other collectives than the {rounds} that rounds() says among {RANKS} ranks; yield as many"
        try:
            for each in [transport.start(op) for transport, op in zip(transports, ops, strict=True) if op]:
                each.wait()
        except RuntimeError as error:
            return f"yields collective {turn + 1} that does not fit on all ranks: {error}"
        # another group may have its turn in between
        for rank in ranks:
            for tensor in rank.context.scratch.contents()[0].values():
                tensor.fill_(OTHERS)
    return ""


def _fault_of(ranks: Sequence[_Rank], given: Tensor, error_feedback: bool, is_cast: bool) -> str:
    """What is wrong with the sums of a trial, or ""; `given` (n,) is what the ranks gave together."""
    first, others = ranks[0], ranks[1:]
    if any(rank.sum.isnan().any() for rank in ranks):
        return "does not write all of the mean; change mean.vector() in place, or have codec.decode() write it"
    if any(not torch.equal(rank.sum, first.sum) for rank in others):
        return (
            "makes other sums on some ranks than on others, and replicas would part; have all ranks add up the same "
            "payloads in the same order"
        )
    # low rank looks at its factors instead
    if first.context.slots.nonfinite is None and not all(rank.nonfinite.isnan() for rank in ranks):
        return (
            "does not tell all ranks that a gradient was not finite on one of them; send context.message(...), whose "
            "flag does, and let every rank receive from every other"
        )
    left = sum(rank.vector.total() for rank in ranks) if error_feedback else 0.0
    if (error_feedback or is_cast) and not torch.allclose(first.sum + left, given, rtol=0, atol=TOLERANCE * RANKS):
        return (
            "loses or adds gradients: the sum and what the ranks leave in x do not add up to their x; add up all "
            "payloads, without dividing by the ranks, for gradients come divided"
        )
    return ""
