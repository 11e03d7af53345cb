"""One group on a few ranks, all in one thread, on a CPU or on a GPU that is pretended."""

from collections.abc import Sequence

import torch
from torch import Tensor

import gradwire as gw
from gradwire.ops.gradients import Gradients
from gradwire.ops.workspace import Workspace
from gradwire.runtime.exchange import GroupExchange, JobContext, ReplicaExchange
from gradwire.runtime.group_input import GroupInput
from gradwire.runtime.store import Store
from gradwire.slots import Slot
from tests.support.cases import Case
from tests.support.pretend_cuda import PretendedGPU, on_gpu, real

WORLD = 4


class Lane:
    """Each collective is carried out when the last rank asks for it."""

    def __init__(
        self,
        case: Case,
        slots: Sequence[Slot],
        device: torch.device,
        gpu: PretendedGPU | None = None,
        world: int = WORLD,
    ) -> None:
        self.slots, self._gpu, self.number = slots, gpu, 0
        group = gw.Group(tuple(slot.name for slot in slots), case.compressor, case.memory, case.communicator)
        self._transports = gw.Threads.group(world)
        self.exchanges: list[GroupExchange] = []
        for transport in self._transports:
            store = Store(slots, device)
            store.arrange(gw.Plan((group,)))
            job = JobContext(gw.Mesh.of(transport), 0, Workspace(device))
            self.exchanges.append(ReplicaExchange(group, 0, store.groups[0], job))

    def step(self, grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """The means, by rank and slot; gradients stay as they are."""
        means = [[on_gpu(grad) if self._gpu else grad.clone() for grad in own] for own in grads]
        given = [GroupInput(Gradients(e.stored.split, own)) for e, own in zip(self.exchanges, means, strict=True)]
        reductions = [e.run(each, self.number) for e, each in zip(self.exchanges, given, strict=True)]
        while ops := [op for op in (next(reduction, None) for reduction in reductions) if op is not None]:
            self._count(False)
            for transport, op in zip(self._transports, ops, strict=True):
                transport.start(op)
            self._count(True)
            self.turn_ended()
        for exchange in self.exchanges:
            assert bool(real(exchange.nonfinite).isfinite())
            exchange.commit()
        self.number += 1
        return [[real(mean) for mean in own] for own in means]

    def residuals(self) -> list[Tensor]:
        """The sum over the ranks of what is kept, by slot."""
        whole = [real(e.stored.flat["residual"].read).double() for e in self.exchanges]
        return self.exchanges[0].stored.layout.views(torch.stack(whole).sum(0))

    def turn_ended(self) -> None:
        """Called between two turns of the group."""

    def _count(self, on: bool) -> None:
        if self._gpu:
            self._gpu.counts = on
