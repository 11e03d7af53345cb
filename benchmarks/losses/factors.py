"""When PowerSGD's factors cost more in 4 bits than in float32: a byte-level GRU under AdamW.

    python benchmarks/losses/factors.py                          # a quarter of an hour on one core
    python benchmarks/losses/factors.py --ways "dense;4 bits" --seeds 0 --workers 2
    python benchmarks/losses/factors.py --engine --seeds 0  # two ranks over gloo, and ways that Gradwire has

One process plays the workers, as `feedback.py` does: embedding, GRU and head of width 128 (164,864 parameters) on the
standard library's sources, 300 steps of 16 windows of 32 bytes, AdamW's rate of 0.008, dense's best of
0.002, 0.004 and 0.008 at width 160 and 64 bytes (one seed).
Rank 28 in 4 bits sends 24 times fewer bytes than float32, as rank 14 does in 8 bits. Losses are held out (a quarter of
the windows), and the mean of the last 30 steps' training losses.

Writes benchmarks/results/factors.json after every run and prints a Markdown table; what was cut short goes on where it
ended.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
from torch import Tensor, nn

import gradwire as gw
from benchmarks.losses.feedback import Code, against_dense, nearest, stochastic
from benchmarks.losses.fidelity import rate
from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from gradwire.lab.workloads import LanguageModel

WIDTH, STEPS, LAST, WINDOWS, EVALUATED, FILE = 128, 300, 30, 16, 4, "factors.json"
RATES = {"adamw": 0.008, "sgd": 2.0}


class GRU(nn.Module):
    """Tokens (batch, time) to logits (batch, time, 256); every call starts from a zero state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(256, WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.embedding(tokens))[0])


def exact(x: Tensor) -> Tensor:
    return x


def bytes_(x: Tensor) -> Tensor:
    """8 bits in blocks of 128, as what is not factored travels."""
    return nearest(x, 8, 128)


def across(x: Tensor) -> Tensor:
    """4 bits in blocks of 64 across a factor's rows, which have different sizes."""
    return nearest(x.mT.contiguous(), 4).mT


def floats(x: Tensor) -> Tensor:
    """4 bits in blocks of 64, levels as far apart as those of floats with 2 bits of exponent and 1 of mantissa."""
    y = x.unflatten(-1, (-1, 64))
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]) / 6
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    nearest_level = torch.bucketize((y / scale).abs(), (levels[1:] + levels[:-1]) / 2)
    return (levels[nearest_level] * y.sign() * scale).view(x.shape)


@dataclass
class Send:
    """PowerSGD with error feedback of gradients (workers, *shape): factors P and Q coded by `p` and `q`, the rest by
    `others`. With `upright` the basis is made on the shorter side of each matrix. `rank` 0 factors nothing."""

    rank: int = 28
    p: Code = exact
    q: Code = exact
    others: Code = bytes_
    orthonormal: bool = False
    upright: bool = False
    bases: dict[int, Tensor] = field(default_factory=dict)
    left: list[Tensor] = field(default_factory=list)

    def __call__(self, gradients: list[Tensor]) -> list[Tensor]:
        xs = [g + e for g, e in zip(gradients, self.left, strict=True)] if self.left else gradients
        sent = [self.sent(i, x) for i, x in enumerate(xs)]
        self.left = [x - s for x, s in zip(xs, sent, strict=True)]
        return [s.mean(0) for s in sent]

    def sent(self, i: int, x: Tensor) -> Tensor:
        if x.ndim < 3 or not self.rank:
            return self.others(x.flatten(1)).view(x.shape)
        if self.upright and x.shape[1] > x.shape[2]:
            return self.factored(i, x.mT).mT
        return self.factored(i, x)

    def factored(self, i: int, x: Tensor) -> Tensor:
        before = self.bases.get(i)
        if before is None:
            before = torch.rand(self.rank, x.shape[2], generator=torch.Generator().manual_seed(i)) - 0.5
        if self.orthonormal:
            before = torch.linalg.qr(before.T).Q.T
        basis = torch.linalg.qr(self.p(before @ x.mT).sum(0).T).Q.T
        q = self.q(basis @ x)
        self.bases[i] = q.sum(0) / q.sum(0).norm().clamp(min=1e-20)
        return basis.T @ q


FOUR, EIGHT = partial(nearest, bits=4), partial(nearest, bits=8)
RANDOM, FINE = partial(stochastic, bits=4), partial(nearest, bits=4, size=16)
FITTED = partial(nearest, bits=4, fitted=True)
WAYS: dict[str, Callable[[], Send]] = {
    "dense": lambda: Send(0, others=exact),
    "rank 28 in float32": lambda: Send(28, others=exact),
    "rank 28 in 4 bits": lambda: Send(28, FOUR, FOUR),
    "rank 14 in 8 bits": lambda: Send(14, EIGHT, EIGHT),
    "rank 17, P in 8 bits, Q in 4": lambda: Send(17, EIGHT, FOUR),
    "rank 24 in 4 bits, blocks of 16": lambda: Send(24, FINE, FINE),
    "rank 42 in 4 bits": lambda: Send(42, FOUR, FOUR),
    "all in 4 bits, not factored": lambda: Send(0, others=FOUR),
    "rank 28 in 8 bits": lambda: Send(28, EIGHT, EIGHT),
    "rank 28, P alone in 4 bits": lambda: Send(28, FOUR),
    "rank 28, Q alone in 4 bits": lambda: Send(28, exact, FOUR),
    "rank 28 in 4 bits, Q made orthonormal": lambda: Send(28, FOUR, FOUR, orthonormal=True),
    "rank 28 in 4 bits, P the shorter factor": lambda: Send(28, FOUR, FOUR, upright=True),
    "rank 28 in 4 bits, levels as floats'": lambda: Send(28, floats, floats),
    "rank 28 in 4 bits, fitted levels": lambda: Send(28, FITTED, FITTED),
    "rank 28 in 4 bits, stochastic": lambda: Send(28, RANDOM, RANDOM),
    "rank 28 in 4 bits, blocks across rows": lambda: Send(28, across, across),
}
ENGINE = {
    "dense": gw.FP32(), "rank 28 in float32": gw.PowerSGD(28), "rank 28 in 4 bits": gw.PowerSGD(28, bits=4),
    "rank 14 in 8 bits": gw.PowerSGD(14, bits=8), "all in 4 bits, not factored": gw.Quantized(4),
}  # fmt: skip


def main() -> None:
    arguments = arguments_of()
    as_rank(lambda: engine(arguments.ways, int(arguments.seeds), arguments.optimizer))
    torch.set_num_threads(1)
    ways = arguments.ways or ";".join(ENGINE if arguments.engine else WAYS)
    for seed, way in product(map(int, arguments.seeds.split(",")), ways.split(";")):
        about = {"way": way, "seed": seed, "optimizer": arguments.optimizer, "engine": arguments.engine}
        about |= {"workers": 2 if arguments.engine else arguments.workers}
        runs = known_runs(FILE)
        if not any(about.items() <= run.items() for run in runs):
            found = in_ranks(about) if arguments.engine else play(way, seed, arguments.optimizer, arguments.workers)
            save_more(FILE, runs=[*runs, about | found])
    print(tables())


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default="", help="between semicolons; all by default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--optimizer", choices=RATES, default="adamw")
    parser.add_argument("--engine", action="store_true")
    return parser.parse_args()


def play(way: str, seed: int, optimizer: str, workers: int) -> dict[str, float]:
    """Trains with all workers in this process."""
    task, model, send = task_of(workers), GRU(seed), WAYS[way]()
    steps, batches = steps_of(model, optimizer), [task.batches(rank, workers, seed) for rank in range(workers)]
    losses = []
    torch.manual_seed(seed)
    for _ in range(STEPS):
        gradients = []
        for own in batches:
            model.zero_grad()
            loss = task.training_loss(model, next(own))
            loss.backward()
            losses.append(loss.item())
            gradients.append([p.grad for p in model.parameters()])
        means = send([torch.stack(each) for each in zip(*gradients, strict=True)])
        for p, mean in zip(model.parameters(), means, strict=True):
            p.grad = mean
        for each in steps:
            each.step()
    return figures(task, model, losses[-LAST * workers :])


def in_ranks(about: dict[str, Any]) -> dict[str, float]:
    given = ["--ways", about["way"], "--seeds", str(about["seed"]), "--optimizer", about["optimizer"]]
    return collect(__file__, given, 2, "loopback")


def engine(way: str, seed: int, optimizer: str) -> dict[str, float]:
    """Trains with `gw.attach` as one of two ranks."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    task, ddp = task_of(2), DDP(GRU(seed))
    handle = gw.attach(ddp, ENGINE[way], seed=seed)
    steps, batches = steps_of(ddp, optimizer), task.batches(dist.get_rank(), 2, seed)
    losses = torch.zeros(STEPS)
    for step in range(STEPS):
        ddp.zero_grad()
        loss = task.training_loss(ddp, next(batches))
        loss.backward()
        losses[step] = loss.detach()
        for each in steps:
            each.step()
    sent = handle.stats().wire_bytes / STEPS
    handle.detach()
    dist.all_reduce(losses)
    return {"bytes": sent} | figures(task, ddp.module, (losses[-LAST:] / 2).tolist())


def task_of(workers: int) -> LanguageModel:
    return LanguageModel(context=32, batch=WINDOWS // workers, max_bytes=2_000_000)


def steps_of(model: nn.Module, name: str) -> tuple[Any, Any]:
    """An optimizer and its schedule."""
    kinds = {"adamw": partial(torch.optim.AdamW, betas=(0.9, 0.95)), "sgd": partial(torch.optim.SGD, momentum=0.9)}
    optimizer = kinds[name](model.parameters(), lr=RATES[name])
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, STEPS))


def figures(task: LanguageModel, model: nn.Module, losses: list[float]) -> dict[str, float]:
    held_out = task.figures(task.sums(model, 0, EVALUATED, whole=True))
    return {"loss": held_out["loss"], "training": fmean(losses)}


def tables() -> str:
    """The runs against dense of the same seed, in Markdown, a table for each optimizer and number of workers."""
    runs, about = known_runs(FILE), ("optimizer", "workers", "engine")
    kinds = {tuple(run[key] for key in about): None for run in runs}
    return "\n\n".join(table([run for run in runs if tuple(run[key] for key in about) == kind], kind) for kind in kinds)


def table(runs: list[dict[str, Any]], kind: tuple[Any, ...]) -> str:
    optimizer, workers, by_engine = kind
    about = f"{optimizer}, {workers} workers{', gw.attach' if by_engine else ''}"
    return markdown((about, "held out against dense, by seed", "training"), against_dense(runs))


if __name__ == "__main__":
    main()
