"""One group on a few ranks, all in one thread, on a CPU or on a GPU that is pretended."""

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

import gradwire as gw
from gradwire.ops.gradients import Gradients
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.plan_exchanges import exchange_of
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
        meshes: Sequence[gw.Mesh] = (),
    ) -> None:
        self.slots, self._gpu, self.number = slots, gpu, 0
        group = gw.Group(tuple(slot.name for slot in slots), case.compressor, case.memory, case.communicator)
        self._meshes = list(meshes) or [gw.Mesh.of(transport) for transport in gw.Threads.group(world)]
        self.exchanges = [exchange_of(group, slots, mesh, device) for mesh in self._meshes]

    def step(self, grads: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """The means, by rank and slot; gradients stay as they are."""
        means = [[on_gpu(grad) if self._gpu else grad.clone() for grad in own] for own in grads]
        given = [GroupInput(Gradients(e.stored.split, own)) for e, own in zip(self.exchanges, means, strict=True)]
        reductions = [e.run(each, self.number) for e, each in zip(self.exchanges, given, strict=True)]
        for ops in zip_longest(*reductions):
            self._count(False)
            for mesh, op in zip(self._meshes, ops, strict=True):
                if op is not None:
                    mesh.start(op)
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
