"""The training of one configuration, as a process of at_size.py:

    python -m benchmarks.losses.size.training NAME OUT TEXT cuda|cpu full|tiny RATE

It reads three lines from standard input, and writes rows after each:

    text    the tokens lie in the folder TEXT                                       ready
    go      all others are ready: the next steps take as long as later ones         speed
    N       the number of steps: only now does the course of the rate need it       curve, held out, losses, ranks

The rate grows in the first steps, which are those that are measured, whatever N is.
"""

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
import torch
from torch import Tensor

from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import Rows
from benchmarks.losses.size.model import FULL, GPT, TINY, Size
from benchmarks.losses.size.ranks import RANKS, EveryStep, Rounds
from benchmarks.losses.size.text import HELD_OUT, TRAIN
from benchmarks.losses.size.ways import ROUND, WAYS, Way
from benchmarks.shared.rates import up_and_down
from gradwire.lab.network.nsenter import die_with
from gradwire.transports import threads

RISE = 100
"""Steps in which the rate grows."""
WARM, TIMED = 14, 16
"""Steps until all is compiled and recorded, and those that are measured behind them."""
CURVE = 100
"""Steps from row to row."""
EVALUATED = 1024
"""Windows that are held out, at most."""


class Training:
    """The steps of one configuration."""

    def __init__(self, way: Way, text: Path, device: Device, size: Size, rate: float, seed: int = 0) -> None:
        self.size = size
        train, self._held_out = (
            torch.from_numpy(numpy.load(text / part)).to(device.device) for part in (TRAIN, HELD_OUT)
        )
        torch.manual_seed(seed)
        vocabulary = 1 + max(int(part.max()) for part in (train, self._held_out))
        model = GPT(vocabulary, self.size).to(device.device)
        self.ranks = (Rounds if way.rounds else EveryStep)(model, way, rate)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._peaks = [group["lr"] for own in self.ranks.optimizers for group in own.param_groups]
        self._batches = batches(train, self.size, seed)
        self.done, self._losses = 0, torch.zeros((), dtype=torch.float32, device=device.device)

    def steps(self, count: int, of: int = 0) -> float:
        """Takes so many steps, of `of` in all; returns their mean training loss."""
        self._losses.zero_()
        for _ in range(count):
            self._set_rates(rate_at(self.done, of))
            self._losses += self.ranks.step(next(self._batches))
            self.done += 1
        return float(self._losses) / count

    def _set_rates(self, factor: float) -> None:
        groups = (group for own in self.ranks.optimizers for group in own.param_groups)
        for group, peak in zip(groups, self._peaks, strict=True):
            group["lr"] = factor * peak

    @torch.no_grad()
    def evaluate(self) -> float:
        """The loss of the shared weights on the text that was held out."""
        found = windows(self._held_out, self.size.context)[:EVALUATED]
        with self.ranks.shared():
            parts = [self.ranks.model.loss(own.long()) * len(own) for own in found.split(self.size.batch)]
        return float(torch.stack(parts).sum()) / len(found)

    def curve_row(self, loss: float) -> dict[str, float]:
        """The cells of a row of the curve; `loss` is the mean of the steps since the row before."""
        tokens = RANKS * self.size.batch * self.size.context
        sent = self.ranks.sent / self.done / self.parameters
        return {"step": self.done, "tokens": self.done * tokens, "training": loss, "bytes a parameter": sent}


def windows(tokens: Tensor, context: int) -> Tensor:
    """Windows (n, context + 1) side by side; the last token of each is the first of the next."""
    return tokens.unfold(0, context + 1, context)


def batches(tokens: Tensor, size: Size, seed: int = 0) -> Iterator[Sequence[Tensor]]:
    """The windows of each rank (batch, context + 1), step by step; every window once, then all again in another
    order. Raises ValueError for a text that is too short for a step."""
    found, draw = windows(tokens, size.context), torch.Generator().manual_seed(seed + 1)
    if len(found) < RANKS * size.batch:
        raise ValueError(f"{len(tokens)} tokens are too few for {RANKS} x {size.batch} windows of {size.context}")
    while True:
        order = torch.randperm(len(found), generator=draw).to(tokens.device)
        for index in order.split(RANKS * size.batch):
            if len(index) == RANKS * size.batch:
                yield found[index].long().split(size.batch)


def rate_at(step: int, steps: int) -> float:
    """The factor of the learning rate at a step; in the first RISE the number of `steps` does not matter."""
    return up_and_down(step, RISE, steps)


def evaluated_at(steps: int) -> set[int]:
    """The steps after which held-out text is evaluated: a third and two thirds, to a whole round, and the last."""
    return {steps // 3 // ROUND * ROUND, 2 * steps // 3 // ROUND * ROUND, steps}


def main(name: str, out: str, text: str, kind: str, size: str, rate: str) -> None:
    # where the script is cut off, nothing stays on the GPU
    die_with(os.getppid())
    if WAYS[name].rounds:
        # ranks would record at the same time, on threads of one process
        os.environ["GRADWIRE_GRAPHS"] = "0"
    # one rank may compile kernels for long, beside so many processes
    threads.PATIENCE_S = 120.0
    rows, device = Rows(Path(out), name, math.inf), Device.of(kind, size == "tiny")
    lines = iter(sys.stdin.readline, "")
    next(lines)
    training = Training(WAYS[name], Path(text), device, TINY if device.tiny else FULL, float(rate))
    training.steps(WARM)
    rows.add("ready")
    next(lines)
    began = time.perf_counter()
    training.steps(TIMED)
    rows.add("speed", seconds=(time.perf_counter() - began) / TIMED, memory=device.memory().reserved)
    steps = int(next(lines))
    # to the next step after which there is something to write
    stops = sorted({*range(CURVE, steps, CURVE), *evaluated_at(steps)} - set(range(WARM + TIMED + 1)))
    held_out, loss = 0.0, 0.0
    for stop in stops:
        loss = training.steps(stop - training.done, of=steps)
        rows.add("curve", **training.curve_row(loss))
        if stop in evaluated_at(steps):
            held_out = training.evaluate()
            rows.add("held out", step=stop, loss=held_out)
    found = training.curve_row(loss)
    rows.add("losses", name=WAYS[name].name, parameters=training.parameters, held_out=held_out, **found)
    rows.add("ranks", **training.ranks.facts())
    training.ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
