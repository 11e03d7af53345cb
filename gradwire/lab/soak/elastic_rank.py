"""A rank of a long run that goes on where others are lost: DDP and DistributedOptimizer with `elastic`.

Every step must conserve gradients: old residuals plus gradients are what was sent plus new residuals.
"""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends import DistributedOptimizer, Handle, Rendezvous, attach
from gradwire.lab.soak.faults import TIMEOUT_S
from gradwire.lab.soak.rank_messages import Orders, delayed, obey, report
from gradwire.lab.soak.soaked_model import batch, gradients, hash_of, network, plan, residuals

LAST_CALL_S = 1.5
"""How long a meeting waits for one more process."""


class ElasticRank:
    """Trains with the ranks that are there, and meets again where one comes or is lost."""

    def __init__(self, store: Store, facts: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.model = network()
        self.alone = network()
        self._facts = facts
        self._inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        # ranks meet over the store; a round begins once the last call is over
        timeout = timedelta(seconds=TIMEOUT_S)
        self._rendezvous = Rendezvous(store, at_least=2, last_call_timeout=LAST_CALL_S, timeout=timeout, backend="gloo")
        self.handle: Handle | None = None
        self._life, self._phase = "", "meeting"
        self._orders = Orders()

    def live(self) -> None:
        """Trains until it is killed or ordered to leave."""
        while True:
            # of those that are there, until one comes or is lost
            try:
                self._phase = "meeting"
                self._rendezvous.meet(self.handle)
                self.handle = self._begin()
                self._train(self.handle, self._rendezvous.resume(self.handle, self._inner))
            except RuntimeError as error:
                report(error=str(error), phase=self._phase)

    def _begin(self) -> Handle:
        way = plan(self.model, self._facts["turn"])
        # DDP with its hook, or the wrapping optimizer
        if self._facts["front_end"] == "DDP":
            self.trained: nn.Module = DistributedDataParallel(self.model)
            self._optimizer: Any = self._inner
            return attach(self.trained, way, elastic=True)
        self.trained = self.model
        self._optimizer = DistributedOptimizer(self._inner, self.model, way, elastic=True)
        return self._optimizer.handle

    def _train(self, handle: Handle, step: int) -> None:
        """Trains until a new rank waits."""
        # a rank that stayed goes on with its memory; one that came late has lost it
        life, before = handle.from_first([uuid4().hex, self._life])
        stayed, late = bool(before) and before == self._life, self._life not in ("", before)
        self._life = life
        report(resumed=step, life=life, stayed=stayed, late=late, ranks=dist.get_world_size(), **self._hashes(handle))
        # one rank looks for newcomers, every other step
        while not (step % 2 == 0 and dist.get_rank() == 0 and self._rendezvous.newcomers()):
            orders = self._orders.take()
            taken = self._step(handle, step, orders)
            step += 1
            obey(orders, handle, [*self.model.parameters()])
            self._phase = "training"
            healed = handle.verify(heal=True)
            report(step=step, life=life, taken=taken, healed=healed, **self._hashes(handle))

    def _step(self, handle: Handle, number: int, orders: list[dict[str, Any]]) -> bool:
        """One step; returns whether it counts. Raises AssertionError where gradients were lost."""
        scale = delayed(orders)
        # the gradient that this rank makes alone, and its residual
        inputs, targets = batch(number)
        self.alone.load_state_dict(self.model.state_dict())
        self.alone.zero_grad()
        nn.functional.cross_entropy(self.alone(inputs), targets).backward()
        before = self._residuals(handle)
        # the step
        self._phase = "training"
        self._inner.zero_grad()
        loss = nn.functional.cross_entropy(self.trained(inputs), targets)
        (scale * loss).backward()
        mean = gradients(self.model)
        if not mean.isfinite().all():
            assert torch.equal(before, self._residuals(handle)), "a skipped step has changed the residual"
            return False
        # conservation: old residual + gradient = sent + new residual
        self._optimizer.step()
        self._phase = "checking"
        sent = before + gradients(self.alone) / dist.get_world_size() - self._residuals(handle)
        dist.all_reduce(sent)
        torch.testing.assert_close(sent, mean, rtol=1e-3, atol=1e-4)
        return True

    def _residuals(self, handle: Handle) -> Tensor:
        """This rank's residuals in one vector."""
        return torch.cat([kept.flatten() for kept in residuals(handle, self.model).values()])

    def _hashes(self, handle: Handle) -> dict[str, str]:
        own = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return {"model": hash_of(own), "owed": hash_of(self._residuals(handle))}
