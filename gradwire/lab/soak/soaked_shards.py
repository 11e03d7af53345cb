"""A sharded model in a long run under faults: FSDP2 inside of replicas, compressed between them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from gradwire.checkpoint import SEPARATOR
from gradwire.frontends import attach
from gradwire.frontends.values import full_tensor, is_sharded
from gradwire.lab.jobs.sharded import gather_into, mesh_of
from gradwire.lab.soak.rank_messages import checking, summed
from gradwire.lab.soak.soaked_model import FRONT_ENDS, batch, gradients, network, plan
from gradwire.memories import RESIDUAL


class SoakedShards:
    """A model under FSDP2: of four ranks two hold a replica, every other time; else each holds one.

    Every step must conserve gradients: old residuals plus gradients are what was sent plus new residuals.
    """

    def __init__(self, turn: int) -> None:
        self._model, self._whole = network(), network()
        shards = 2 - turn // len(FRONT_ENDS) % 2 if dist.get_world_size() == 4 else 1
        self._mesh = mesh_of(shards, torch.device("cpu"))
        fully_shard(self._model, mesh=self._mesh["shard"])
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        self.handle = attach(self._model, plan(self._model, turn), mesh=self._mesh)

    def step(self, number: int, scale: float) -> None:
        inputs, targets = batch(number)
        # before the step: the residuals' sum, and the mean of the gradients
        before, alone = self.owed(), self._gradients_alone(inputs, targets)
        self._optimizer.zero_grad()
        (scale * nn.functional.cross_entropy(self._model(inputs), targets)).backward()
        mean = _whole([p.grad for p in self._model.parameters()]).double()
        if not mean.isfinite().all():
            assert torch.equal(before, self.owed()), "a skipped step has changed the residual"
            return
        self._optimizer.step()
        # conservation over all ranks
        torch.testing.assert_close(before + alone - self.owed(), mean, rtol=1e-3, atol=1e-4)

    def shared(self) -> list[Tensor]:
        return [p.to_local() for p in self._model.parameters() if is_sharded(p)]

    def whole(self) -> Tensor:
        return _whole(self._model.parameters())

    def owed(self) -> Tensor:
        state = self.handle.state_dict()
        shards = self._mesh["shard"]
        parts = list[Tensor]()
        for name, p in self._model.named_parameters():
            part = torch.zeros(p.shape, dtype=torch.double)
            if (kept := state.get(f"{name}{SEPARATOR}{RESIDUAL}")) is not None:
                # as FSDP cuts
                part.chunk(shards.size())[shards.get_local_rank()].copy_(kept)
            parts.append(part.flatten())
        return summed(torch.cat(parts))

    def state(self, saved: Path | None) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer, "gradwire": self.handle.stateful(saved)}

    def take(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    def _gradients_alone(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The uncompressed mean over all ranks."""
        with checking():
            gather_into(self._whole, self._model)
        self._whole.zero_grad()
        nn.functional.cross_entropy(self._whole(inputs), targets).backward()
        return summed(gradients(self._whole)) / dist.get_world_size()


def _whole(sharded: Iterable[Tensor | None]) -> Tensor:
    with checking():
        return torch.cat([full_tensor(t).detach().flatten() for t in sharded if t is not None])
