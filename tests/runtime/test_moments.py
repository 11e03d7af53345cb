"""Every call of a handle at every moment of a step, with ranks that are threads; SCHEDULES=2000 for a long run."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

import gradwire as gw
from gradwire.frontends.local_steps.fragments import cut
from tests.support.harness import raising, together
from tests.support.moments import CALLS, Log, Network, OfGradients, Trained, Training, check, dense_of, flat

FIRST, SCHEDULES = int(os.environ.get("FIRST", "0")), int(os.environ.get("SCHEDULES", "15"))


def of_optimizer(transport: gw.Transport, begins: gw.Plan | gw.TopK, unused: bool) -> Trained:
    model = Network()
    optimizer = gw.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model, begins, transport=transport,
        find_unused_parameters=unused, dense=dense_of(begins),
    )  # fmt: skip
    return OfGradients(model, model, optimizer.handle, optimizer)


class OfRounds:
    """Local steps: what a fragment has moved is given when it is sent, and its mean is there after some inner steps."""

    def __init__(self, transport: gw.Transport, begins: gw.Plan | gw.TopK, seed: int) -> None:
        self.model, self.accumulate = Network(), nullcontext
        self.optimizer = gw.LocalSteps(
            torch.optim.SGD(self.model.parameters(), lr=0.05), self.model, begins, transport=transport, inner_steps=2,
            outer=gw.Outer(lr=1.0, momentum=0), dense=dense_of(begins), **ways(seed),
        )  # fmt: skip
        self.handle, self._rounds = self.optimizer.handle, self.optimizer._rounds
        self._send, self._wait, self._world = self._rounds._send, self._rounds._wait, transport.world
        self._rounds._send, self._rounds._wait = self.send, self.wait  # pyright: ignore[reportAttributeAccessIssue]
        self._given, self._means = self._of({}), list[Tensor]()

        self.handle._waits = True  # stragglers() is asked as well

    def forward(self, x: Tensor, skipped: int) -> Tensor:
        return self.model(x, -1)

    def send(self, index: int) -> None:
        self._given += self._of(self._rounds.fragments[index].pseudo_gradients) / self._world
        self._send(index)

    def wait(self, index: int) -> None:
        was_sent = index in self._rounds.under_way
        self._wait(index)
        if was_sent:
            self._means.append(self._of(self._rounds.fragments[index].pseudo_gradients))

    def taken(self, given: Tensor) -> tuple[Tensor, list[Tensor]]:
        self.optimizer.step()
        self.optimizer.zero_grad()
        exchanged, self._given, self._means = (self._given, self._means), self._of({}), []
        return exchanged

    def settle(self) -> None:
        self._rounds.runtime.finish()

    def last(self) -> list[Tensor]:
        return [self._of(self._rounds.fragments[index].pseudo_gradients) for index in self._rounds.under_way]

    def _of(self, tensors) -> Tensor:
        return flat([tensors.get(name, torch.zeros_like(p)) for name, p in self.model.named_parameters()]).detach()


def ways(seed: int) -> dict[str, Any]:
    more = ({}, {"delay": 1}, {"delay": 2}, {"eager": True})[seed // 2 % 4]
    return {"fragments": 1 + seed % 2, **more}


def run_all(train: Callable[[int, int], Training]) -> None:
    for seed in range(FIRST, FIRST + SCHEDULES):

        def run(rank: int, seed: int = seed) -> Log:
            training = train(seed, rank)
            try:
                return training.run()
            finally:
                training.handle.detach()

        try:
            check(raising(together(2, run)))
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            raise


def test_calls_at_any_moment_with_an_optimizer():
    transports = {}

    def train(seed: int, rank: int) -> Training:
        return Training(
            seed,
            rank,
            2,
            lambda rank, begins, unused: of_optimizer(meeting(transports, seed)[rank], begins, unused),
            may_fail=True,
        )

    run_all(train)


def test_calls_at_any_moment_of_local_steps():
    transports = {}

    def train(seed: int, rank: int) -> Training:
        model = Network()
        parts = cut(model, dict(model.named_parameters()), 1 + seed % 2)
        return Training(
            seed, rank, 2, lambda rank, begins, unused: OfRounds(meeting(transports, seed)[rank], begins, seed),
            parts=parts, after_steps=True,
            calls=[call for call in CALLS if call != "verify" or not ways(seed).get("eager")],  # anchors differ then
        )  # fmt: skip

    run_all(train)


def meeting(transports: dict[int, list[gw.Threads]], seed: int) -> list[gw.Threads]:
    """The ranks' transports, which the first one to come makes."""
    return transports.setdefault(seed, gw.Threads.group(2))
