"""Local steps in a long run under faults."""

from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.frontends import LocalSteps
from gradwire.lab.soak.rank_messages import summed
from gradwire.lab.soak.soaked_model import FRONT_ENDS, batch, network, plan, residuals

ROUNDS: tuple[dict[str, Any], ...] = (
    {"inner_steps": 3},
    {"inner_steps": 4, "fragments": 2, "delay": 1},
    {"inner_steps": 3, "delay": 2, "mix": 0.5},
    {"inner_steps": 6, "fragments": 2, "delay": 5},
)
"""Nothing is sent in the step in which something is received: where that round is given up, the model goes back between
the inner optimizer's hook and the sending."""


class SoakedLocalSteps:
    """A model under local steps, with another kind of rounds in each turn.

    Every outer step must conserve pseudo-gradients: old residuals plus pseudo-gradients are what was sent plus new
    residuals. Pseudo-gradients are known to the inner optimizer's hook, before the exchange; what was sent is the
    gradient of the outer step, whose hook comes `delay` inner steps later.
    """

    def __init__(self, turn: int) -> None:
        # another kind of rounds in each turn
        way = ROUNDS[turn // len(FRONT_ENDS) % len(ROUNDS)]
        self._model, self._inner_steps = network(), way["inner_steps"]
        self._inner = torch.optim.SGD(self._model.parameters(), lr=0.05, momentum=0.9)
        self._optimizer = LocalSteps(self._inner, self._model, plan(self._model, turn), **way)
        self.handle = self._optimizer.handle
        # the anchors, by the parameters that they begin as
        anchors = [anchor for group in self._optimizer.outer.param_groups for anchor in group["params"]]
        self._anchors = {
            name: next(anchor for anchor in anchors if torch.equal(anchor, p))
            for name, p in self._model.named_parameters()
        }
        self._held = residuals(self.handle, self._model)
        self._models: deque[dict[str, Tensor]] = deque(maxlen=way.get("delay", 0) + 1)
        # what is moved is known before the exchange, what was sent when the outer optimizer steps
        self._inner.register_step_post_hook(self._inner_stepped)
        self._optimizer.outer.register_step_pre_hook(self._outer_steps)

    def step(self, number: int, scale: float) -> None:
        for inner in range(self._inner_steps):
            inputs, targets = batch(number * self._inner_steps + inner)
            self._inner.zero_grad()
            (scale * nn.functional.cross_entropy(self._model(inputs), targets)).backward()
            self._optimizer.step()

    def shared(self) -> list[Tensor]:
        return [*self._anchors.values()]

    def whole(self) -> Tensor:
        return torch.cat([anchor.flatten() for anchor in self._anchors.values()])

    def owed(self) -> Tensor:
        return summed(torch.cat([kept.flatten() for kept in residuals(self.handle, self._model).values()]))

    def state(self, saved: Path | None) -> dict[str, Any]:
        return {"local_steps": self._optimizer.stateful(saved)}

    def take(self, state: dict[str, Any]) -> None:
        self._held = residuals(self.handle, self._model)

    def _inner_stepped(self, *arguments: Any) -> None:
        self._models.append({name: p.detach().clone() for name, p in self._model.named_parameters()})

    def _outer_steps(self, *arguments: Any) -> None:
        """Raises AssertionError where pseudo-gradients were lost."""
        # only the fragment that was received has changed
        before, now = self._held, residuals(self.handle, self._model)
        fragment = {name: anchor for name, anchor in self._anchors.items() if anchor.grad is not None}
        self._held = before | {name: now[name] for name in fragment}
        if len(self._models) < (self._models.maxlen or 0):
            # it was sent before the checkpoint
            return
        for name, anchor in fragment.items():
            moved = (anchor - self._models[0][name]).double() / dist.get_world_size()
            sent = summed(before[name] + moved - now[name])
            torch.testing.assert_close(sent, anchor.grad.double(), rtol=1e-3, atol=1e-5)
