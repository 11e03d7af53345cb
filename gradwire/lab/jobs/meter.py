"""Clock and sums of one rank's training."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.results import Record, Totals
from gradwire.ops.host import synchronize


class Meter:
    """Times, losses and bytes of the steps since the last record; evaluating and recording stop its clock."""

    def __init__(self, replica: MeasuredModel) -> None:
        self._replica = replica
        self._wall_s = 0.0
        self._step_ms: list[float] = []
        self._steps = 0
        self._resumed: tuple[int, Totals] | None = None
        self.loss = torch.zeros((), device=replica.peers.device)

    @contextmanager
    def step(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        synchronize(self._replica.peers.device)
        seconds = time.perf_counter() - start
        self._wall_s += seconds
        self._step_ms.append(1e3 * seconds)
        self._steps += 1

    def record(self, number: int, *, last: bool) -> Record:
        """The record since the last one; all ranks call it after the same step.

        Raises RuntimeError where it is the `last` one and the replicas differ."""
        # the ranks' mean loss since the last record
        peers, totals = self._replica.peers, self._totals(number)
        (loss,) = peers.mean([float(self.loss) / self._steps])
        self._steps = 0
        self.loss.zero_()
        # times of the steps since, and at the end whether replicas are equal bit by bit
        step_ms = self._take(whole=not last)
        replicas = self._replica.hash() if last else None
        decisions = [asdict(decision) for decision in self._replica.decisions()]
        return Record(
            number, self._wall_s, loss, peers.mean_of(totals), step_ms, replicas=replicas, decisions=decisions
        )

    def _take(self, *, whole: bool) -> list[float]:
        """Takes the steps' times, averaged by rounds; of `whole` rounds alone, or of all."""
        every = self._replica.every
        there = len(self._step_ms) // every * every if whole else len(self._step_ms)
        taken, self._step_ms = self._step_ms[:there], self._step_ms[there:]
        return over_rounds(taken, every)

    def state_dict(self, number: int) -> dict[str, Any]:
        """This rank's state after step `number`."""
        return {
            "wall_s": self._wall_s,
            "step_ms": self._step_ms,
            "steps": self._steps,
            "loss": self.loss,
            "number": number,
            "totals": asdict(self._totals(number)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned, without the bytes of this process so far, of one step."""
        self._wall_s = state["wall_s"]
        self._step_ms = state["step_ms"]
        self._steps = state["steps"]
        self.loss.copy_(state["loss"])
        self._resumed = state["number"], Totals(**state["totals"]) - self._replica.totals(1)

    def _totals(self, number: int) -> Totals:
        if self._resumed is None:
            return self._replica.totals(number)
        start, earlier = self._resumed
        return self._replica.totals(number - start + 1) + earlier


def over_rounds(step_ms: Sequence[float], every: int) -> list[float]:
    """The steps' times, each replaced by the mean of its round of `every`."""
    rounds = [step_ms[i : i + every] for i in range(0, len(step_ms), every)]
    return [sum(own) / len(own) for own in rounds for _ in own]
