"""The collectives that take the place of FSDP2's own.

reduce-scatter  every rank encodes each other rank's part of its gradients, all swap them, and each sums in float32
                the parts that it received; with a memory, the next step's gradients include the error
all-gather      every rank encodes its shard, all get all, and every rank decodes all of them, its own as well
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.collective import AllToAll, Collective, Gather, Message
from gradwire.compressors import FP32, Codec, DoubleBuffer, GroupContext
from gradwire.compressors.compressor import context_for
from gradwire.memories import RESIDUAL, Residual
from gradwire.ops.host import stream_of
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout, real
from gradwire.transports import ProcessGroup


class ShardCollective:
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


class ShardReduceScatter(ShardCollective):
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
                "parameters were frozen or thawed, and memories are of others; call detach() of the compression, and "
                "compress_shards() anew"
            )
        return self.residual


class ShardAllGather(ShardCollective):
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
