"""Compression of FSDP2's own two collectives, for shards that lie across a slow link.

reduce-scatter  every rank encodes each other rank's part of its gradients, all swap them, and each sums in float32
                the parts that it received; with a memory, the next step's gradients include the error
all-gather      every rank encodes its shard, all get all, and every rank decodes all of them, its own as well
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.collective import AllToAll, Collective, Gather, Message
from gradwire.compressors import FP32, Codec, Compressor, DoubleBuffer, GroupContext
from gradwire.compressors.compressor import context_for
from gradwire.frontends.values import is_sharded
from gradwire.memories import RESIDUAL, Residual
from gradwire.ops.host import stream_of
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.options import called_as, check_type
from gradwire.runtime.agreement import Agreement
from gradwire.runtime.job_options import JobOptions
from gradwire.slots import Layout, real
from gradwire.torch_private.fully_shard import (
    fsdp_groups,
    is_fsdp,
    parameters_of_fsdp,
    reduces_unused,
    replace_collectives,
)
from gradwire.transports import ProcessGroup

EXACT = FP32()


class ShardTraffic(NamedTuple):
    """Bytes that this rank has sent in the replaced collectives, and that FSDP would have sent."""

    wire_bytes: int
    dense_bytes: int


class ShardCompression:
    """A model's compressed collectives, from `compress_shards`: their traffic and their end."""

    def __init__(self, comms: Sequence["_Comm"], undo: Sequence[Callable[[], None]]) -> None:
        self._comms, self._undo = comms, undo

    def traffic(self) -> ShardTraffic:
        """Bytes so far."""
        return ShardTraffic(sum(comm.wire_bytes for comm in self._comms), sum(comm.dense_bytes for comm in self._comms))

    def detach(self) -> None:
        """Brings back FSDP's own collectives."""
        for undo in reversed(self._undo):
            undo()


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
    `set_reduce_scatter_unused_params(True)`.

    Call it on all ranks, after `fully_shard`. For replicas of sharded models see `attach`, which keeps what it did not
    send. Raises ValueError, on all ranks, for compressors that need a memory, for ranks that differ, and for a model
    that is not sharded.
    """
    # all ranks compare over the store, before FSDP is changed
    _agree(model, gradients, weights, memory, seed)
    links: dict[dist.ProcessGroup, ProcessGroup] = {}
    groups = fsdp_groups(model)
    # replicas of a shard add up their gradients, so each rank's noise is its own; they put together the same weights
    reduce_scatter = ShardReduceScatter(gradients, links, seed + dist.get_rank(), memory)
    all_gather = ShardAllGather(weights, links, seed)
    comms: list[_Comm] = []
    undo: list[Callable[[], None]] = []
    for group in groups:
        # each has a residual of its own; buffers are shared
        reduce_scatter.parameters = parameters_of_fsdp(group)
        own = [None if comm.is_exact else copy(comm) for comm in (reduce_scatter, all_gather)]
        undo.append(replace_collectives(group, *own))
        comms += filter(None, own)
        if memory:
            # so that a gradient's place never changes
            undo.append(reduces_unused(group))
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
        return {"gradients": str(gradients), "weights": str(weights), "memory": str(memory), "seed": str(seed)}

    try:
        Agreement(axes, [], sharded[0].to_local().device, JobOptions()).on(facts, "compress_shards()")
    finally:
        axes.close()


def _check(gradients: Codec, weights: Codec, memory: Residual | None) -> None:
    check_type("memory", memory, (Residual,), "gw.Residual()")
    if memory and memory.dtype != torch.float32:
        raise ValueError(f"compress_shards() keeps float32, not {memory.dtype}; use memory=gw.Residual()")
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


class _Comm:
    """A replaced collective of one of FSDP's groups of parameters, called on the stream of FSDP's own, with
    FSDP's tensors. `links` has a transport for each process group."""

    def __init__(
        self,
        codec: Codec,
        links: dict[dist.ProcessGroup, ProcessGroup],
        seed: int,
        memory: Residual | None = None,
    ) -> None:
        self._codec = codec
        self._links = links
        self._seed = seed
        self._memory = memory
        self._contexts: dict[tuple[int, dist.ProcessGroup, int], GroupContext] = {}
        self._draws = count()
        self.wire_bytes = self.dense_bytes = 0

    @property
    def is_exact(self) -> bool:
        """Whether FSDP's own collective does the same."""
        return self._codec == FP32()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A buffer for FSDP's copies."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _context(self, n: int, group: dist.ProcessGroup, device: torch.device) -> GroupContext:
        """The context for parts of n elements, with buffers that are kept."""
        # buffers are kept, once for each size and process group, and for each stream: two of them are not in order, as
        # those of FSDP's own all-gathers and of unshard(async_op=True)
        key = (n, group, stream_of(device))
        if key not in self._contexts:
            # state and buffers of a rank alone, then this group's ranks
            fresh = context_for(Layout.vector(n), self._codec, device)
            self._contexts[key] = replace(
                fresh,
                rank=group.rank(),
                world=group.size(),
                error_feedback=self._memory is not None,
                seed=self._seed,
                draws=self._draws,
            )
        return self._contexts[key]

    def _vector(self, x: Tensor, row: Message, context: GroupContext) -> LazySum:
        """x (n,), which may be changed, in float32; where it is not finite, the row's flag becomes NaN."""
        assert row.flags is not None
        row.flags.zero_()
        exact = x if x.dtype == torch.float32 else context.buffers.tensor("exact", (len(x),)).copy_(x)
        return LazySum(exact, exact, None, nonfinite=row.flags)

    def _run(self, op: Collective, group: dist.ProcessGroup, dense: Tensor) -> None:
        """Runs a collective and counts its bytes; FSDP would have sent `dense` to each other rank."""
        if group not in self._links:
            self._links[group] = ProcessGroup(group)
        self._links[group].run(op)
        self.wire_bytes += op.wire_bytes(group.size())
        self.dense_bytes += (group.size() - 1) * dense.nbytes


def _numbers(vector: Tensor) -> Tensor:
    """A vector, of complex numbers as one of real numbers."""
    return real(vector).view(-1)


class ShardReduceScatter(_Comm):
    """A reduce-scatter: each rank's part is summed there in float32."""

    residual: Tensor | None = None
    """(ranks, n) the gradients that this rank has not sent."""
    parameters: Sequence[Tensor] = ()
    """Those of FSDP's group, of which some may be frozen."""
    _trained: Sequence[bool] = ()

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """input (ranks·n,), output (n,). Raises ValueError for a sum with a factor inside."""
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(
                "set_gradient_divide_factor() has the collective divide; call set_force_sum_reduction_for_comms(True) "
                "as well"
            )
        # encode each rank's part into its row
        output_tensor, input_tensor = _numbers(output_tensor), _numbers(input_tensor)
        world, n = group.size(), len(output_tensor)
        context = self._context(n, group, input_tensor.device)
        size = self._codec.group_bytes(context.layout, 0)
        send, receive = context.message("send", size, rows=world), context.message("receive", size, rows=world)
        residual = self._remembered(world, n, input_tensor.device)
        for rank, part in enumerate(input_tensor.view(world, n)):
            self._fill(send.row(rank), part, context, None if residual is None else residual[rank])
        # swap rows, and add up those of this rank's part
        self._run(AllToAll(send, receive), group, output_tensor)
        assert receive.flags is not None
        total = context.buffers.tensor("total", (n,))
        self._codec.decode(receive.body[None], Mean.of(total), context.whole)
        # mean or sum, as FSDP asks; a flag makes it NaN
        total.div_(world if op == dist.ReduceOp.AVG else 1).add_(receive.flags.sum())
        output_tensor.copy_(total)

    def _fill(self, row: Message, x: Tensor, context: GroupContext, kept: Tensor | None) -> None:
        """Writes x (n,), and a memory's residual `kept` (n,), which is updated unless something is not finite."""
        vector = self._vector(x, row, context)
        # add the residual
        state = {}
        if self._memory and kept is not None:
            state = {RESIDUAL: DoubleBuffer(kept, context.buffers.tensor("left", (len(x),)))}
            vector = self._memory.add(state, vector, context.layout, 1)
        # encode, and keep what was not sent
        self._codec.encode(vector, row.body[None], context.whole)
        if self._memory and kept is not None:
            assert row.flags is not None
            self._memory.sent(state)
            torch.where(row.flags.isnan(), kept, state[RESIDUAL].write, out=kept)

    def _remembered(self, world: int, n: int, device: torch.device) -> Tensor | None:
        # (ranks, n): made at the first step, when sizes are known
        trained = [parameter.requires_grad for parameter in self.parameters]
        if self._memory and self.residual is None:
            self.residual, self._trained = torch.zeros(world, n, dtype=torch.float32, device=device), trained
        if self.residual is not None and (self.residual.shape, self._trained) != ((world, n), trained):
            raise ValueError(
                "parameters were frozen or thawed, and memories are of others; call compress_shards() anew"
            )
        return self.residual


class ShardAllGather(_Comm):
    """An all-gather of shards; all ranks decode the same."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        """input (n,), a part of output (ranks·n,)."""
        # shards of types that codecs do not take travel as they are
        output_tensor, input_tensor = _numbers(output_tensor), _numbers(input_tensor)
        world, n = group.size(), len(input_tensor)
        if not input_tensor.is_floating_point():
            # shards of several types, as bytes
            rows = Message.plain(output_tensor.view(world, n))
            return self._run(Gather(Message.plain(input_tensor), rows), group, input_tensor)
        # encode this rank's shard
        context = self._context(n, group, input_tensor.device)
        size = self._codec.group_bytes(context.layout, 0)
        send, receive = context.message("send", size), context.message("receive", size, rows=world)
        self._codec.encode(self._vector(input_tensor, send, context), send.body[None], context.whole)
        # all get all, and decode each rank's
        self._run(Gather(send, receive), group, input_tensor)
        assert receive.flags is not None
        exact = context.buffers.tensor("exact", (n,))
        for rank, part in enumerate(output_tensor.view(world, n)):
            self._codec.decode(receive.body[rank, None, None], Mean.of(exact), context.whole)
            part.copy_(exact.add_(receive.flags[rank]))
