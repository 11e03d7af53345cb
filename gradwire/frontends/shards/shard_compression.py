"""Compression of FSDP2's own two collectives, for shards that lie across a slow link."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from gradwire.compressors import FP32, Codec, Compressor
from gradwire.frontends.shards.failed_passes import FailedPasses
from gradwire.frontends.shards.shard_collectives import ShardAllGather, ShardCollective, ShardReduceScatter
from gradwire.frontends.values import is_sharded
from gradwire.memories import Residual
from gradwire.options import called_as, check_type
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.job_options import JobOptions
from gradwire.torch_private.compiled import named_parameters, uncompiled
from gradwire.torch_private.fully_shard import (
    can_reduce_unused,
    collectives_of,
    cut_over,
    fsdp_groups,
    is_fsdp,
    parameters_of_fsdp,
    reduces_unused,
    replace_collectives,
    shard_ranks,
)
from gradwire.transports import ProcessGroup

EXACT = FP32()


class ShardTraffic(NamedTuple):
    """Bytes that this rank has sent in the replaced collectives, and that FSDP would have sent."""

    wire_bytes: int
    dense_bytes: int


class ShardCompression:
    """A model's compressed collectives, from `compress_shards`: their traffic and their end."""

    def __init__(self, comms: Sequence["ShardCollective"], undo: Sequence[Callable[[], None]]) -> None:
        self._comms, self._undo = comms, undo

    def traffic(self) -> ShardTraffic:
        """Bytes so far."""
        return ShardTraffic(sum(comm.wire_bytes for comm in self._comms), sum(comm.dense_bytes for comm in self._comms))

    def detach(self) -> None:
        """Brings back FSDP's own collectives."""
        undo, self._undo = self._undo, ()
        for each in reversed(undo):
            each()


@called_as("gw.compress_shards(model, gw.QSGD(), memory=gw.Residual())")
def compress_shards(
    model: nn.Module, gradients: Codec, weights: Codec = EXACT, *, memory: Residual | None = None, seed: int = 0
) -> ShardCompression:
    """Has FSDP2 send in fewer bits what it sends between the ranks that hold a model's shards: `gradients` when it adds
    them up (reduce-scatter), `weights` when it puts parameters together (all-gather), each step anew from the shards,
    which stay exact. `FP32()` leaves a collective as it is. Quantized weights and gradients without a memory are
    ZeRO++'s (Wang et al., 2023, https://arxiv.org/abs/2306.10209). `seed` starts all randomness.

    An element is off by its block's largest magnitude / 127 at most with `QSGD()`, and by half of that with
    `Quantized(8)`. Means are of errors as well. What is not finite stays so: the sum is NaN.

    With `memory=gw.Residual()` the gradients that a rank has not sent are added to its next ones, and `gradients` may
    be TopK, ChunkTopK or EFSignSGD. That takes 4 bytes for each of the model's parameters on every rank, whatever the
    number of shards. Parameters without a gradient then count as zeros, as with
    `set_reduce_scatter_unused_params(True)` of torch 2.13.

    Call it on all ranks, after `fully_shard`. For replicas of sharded models see `attach`, which keeps what it did not
    send. Raises ValueError, on all ranks, for compressors that need a memory, for ranks that differ, and for a model
    that is not sharded.
    """
    model = uncompiled(model)
    # all ranks compare over the store, before FSDP is changed
    _agree(model, gradients, weights, memory, seed)
    links: dict[dist.ProcessGroup, ProcessGroup] = {}
    groups = fsdp_groups(model)
    # replicas of a shard add up their gradients, so each rank's noise is its own; they put together the same weights
    reduce_scatter = ShardReduceScatter(gradients, links, seed + dist.get_rank(), memory)
    all_gather = ShardAllGather(weights, links, seed)
    comms: list[ShardCollective] = []
    undo: list[Callable[[], None]] = []
    for group in groups:
        # each has a residual of its own; buffers are shared
        reduce_scatter.parameters = parameters_of_fsdp(group)
        own = [None if comm.is_exact else copy(comm) for comm in (reduce_scatter, all_gather)]
        undo.append(replace_collectives(group, *own))
        comms += filter(None, own)
        if memory and own[0]:
            # so that a gradient's place never changes
            undo.append(reduces_unused(group))
    undo.append(FailedPasses(model).remove)
    return ShardCompression(comms, undo)


def _agree(model: nn.Module, gradients: Codec, weights: Codec, memory: Residual | None, seed: int) -> None:
    """Raises ValueError on all ranks where one of them cannot go on, or they differ."""
    check_type("model", model, (nn.Module,), "fully_shard(model)", optional=False)
    sharded = [p for p in model.parameters() if is_sharded(p)] if is_fsdp(model) else []
    if not sharded:
        raise ValueError("compress_shards() is for what fully_shard has wrapped; call fully_shard(model) first")
    # axes for the meeting alone, of all ranks that have a part of the model: those of other replicas, too
    axes = ProcessGroup.by_replica(sharded[0].device_mesh)

    def facts() -> dict[str, str]:
        _check(gradients, weights, memory)
        _check_model(model, exact=gradients == weights == EXACT)
        return {"gradients": str(gradients), "weights": str(weights), "memory": str(memory), "seed": str(seed)}

    try:
        Agreement(axes, [], sharded[0].to_local().device, JobOptions()).on(facts, "compress_shards()")
    finally:
        axes.close()


def _check_model(model: nn.Module, exact: bool) -> None:
    """Raises ValueError for a model whose collectives are replaced already; and unless all is sent `exact`, for one
    whose ranks have equal copies of a parameter beside different parts of another one, with which it is encoded."""
    if any(isinstance(comm, ShardCollective) for group in fsdp_groups(model) for comm in collectives_of(group)):
        raise ValueError("the model's shards are compressed already; call detach() of what compress_shards() returned")
    # whether tensor parallelism cuts a parameter: over ranks among which FSDP does not shard it
    cut = {
        id(parameter): not over.issuperset(cut_over(parameter))
        for group in fsdp_groups(model)
        if (over := shard_ranks(group))
        for parameter in parameters_of_fsdp(group)
        if is_sharded(parameter)
    }
    if len({*cut.values()}) > 1 and not exact:
        whole = next(name for name, p in named_parameters(model) if not cut.get(id(p), True))
        raise ValueError(
            f"tensor parallelism leaves {whole!r} whole, and its copies would part; shard inside hosts and "
            "attach(model, ..., mesh=mesh) between them, which sends such by themselves"
        )


def _check(gradients: Codec, weights: Codec, memory: Residual | None) -> None:
    check_type("memory", memory, (Residual,), "gw.Residual()")
    if memory and memory.dtype != torch.float32:
        raise ValueError(f"compress_shards() keeps float32, not {memory.dtype}; use memory=gw.Residual()")
    if memory and not can_reduce_unused():
        raise ValueError(
            "compress_shards(memory=...) needs torch 2.13, whose FSDP2 can reduce zeros for parameters without a "
            f"gradient, and this is torch {torch.__version__}; leave memory= out, with gw.QSGD() or gw.Quantized(8)"
        )
    # both codecs suit shards
    lacking = "" if memory else "needs a memory for gradients"
    for name, codec, lack in (
        ("gradients", gradients, lacking),
        ("weights", weights, "needs a memory, which weights do not have"),
    ):
        check_type(name, codec, (Compressor,), f"gw.QSGD(), or {name}=gw.FP32() for as it is", optional=False)
        if refusal := {"no": "sends no shards", "with memory": lack, "yes": ""}[codec.for_shards]:
            raise ValueError(
                f"{codec} {refusal}; use gw.QSGD(), gw.Quantized(8) or gw.BF16(), or for gradients gw.TopK(0.01) with "
                "memory=gw.Residual(), or shard inside hosts and attach(model, ..., mesh=mesh) between them"
            )
