"""Other ways to lower the loss at equal bytes: feedback, codes and optimizers' states, beside those in the package.

    python benchmarks/losses/feedback.py                                   # hours on one core
    python benchmarks/losses/feedback.py --tasks gpt-adamw --seeds 0 --ways "dense;top-k 1/16;top-k 1/16, EControl"

The tasks of `fidelity.py`, 300 steps, two ranks in one process. Each way to send is a few lines of torch that round as
the package does. Losses: held out, and the mean of the last 30 steps' training losses.

Writes benchmarks/results/feedback*.json, one per task, after every run, and prints Markdown tables; an interrupted run
goes on where it ended.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
from torch import Tensor

from benchmarks.losses.fidelity import STEPS, TASKS, rate
from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.tables import markdown

RANKS = 2
Matrices = list[Tensor]
"""A gradient: a tensor per slot."""
Code = Callable[[Tensor], Tensor]
"""From a tensor to its decoded payload."""
Send = Callable[[list[Matrices]], tuple[Matrices, list[Matrices]]]
"""From the matrices of all ranks to the decoded mean, and the decoded payload of each rank."""


def blocks(x: Tensor, size: int) -> Tensor:
    """The rows of x (..., n), each in blocks, filled up with zeros: (blocks, size)."""
    rows = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x[None]
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % size)).view(-1, size)


def unblocked(y: Tensor, like: Tensor, size: int) -> Tensor:
    n = like.shape[-1]
    return y.view(-1, n + -n % size)[:, :n].reshape(like.shape)


def nearest(x: Tensor, bits: int, size: int = 64, clips: Sequence[float] = (1.0,), fitted: bool = False) -> Tensor:
    """Rounds to the nearest level. Of several `clips` of a block's maximum, takes the one with the least error; with
    `fitted`, a level decodes to the mean of the values that it rounds."""
    y, top = blocks(x, size), 2 ** (bits - 1) - 1
    largest, best, least = y.abs().amax(1, keepdim=True), torch.zeros_like(y), torch.full((len(y), 1), torch.inf)
    for clip in clips:
        scale = (largest * clip / top).bfloat16().float()
        codes = torch.where(scale > 0, y / scale, 0.0).round().clamp(-top, top)
        if fitted:
            share = torch.where(scale > 0, y / scale, 0.0).abs()
            level = codes.abs().long()
            sums, counts = torch.zeros(top + 1), torch.zeros(top + 1)
            sums.index_add_(0, level.flatten(), share.flatten())
            counts.index_add_(0, level.flatten(), torch.ones(level.numel()))
            means = sums / counts.clamp(min=1)
            means[0] = 0
            codes = codes.sign() * means[level]
        tried = codes * scale
        left = (y - tried).square().sum(1, keepdim=True)
        best = torch.where(left < least, tried, best)
        least = torch.minimum(left, least)
    return unblocked(best, x, size)


def rotated(x: Tensor, bits: int, size: int = 64) -> Tensor:
    """Rounds each block after a Hadamard rotation with random signs, and rotates back."""
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(1)).mul_(2).sub_(1).float()
    h = torch.ones(1, 1)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    h = h * signs / size**0.5
    y = blocks(x, size) @ h.T
    return unblocked(nearest(y, bits, size) @ h, x, size)


def stochastic(x: Tensor, bits: int, size: int = 64) -> Tensor:
    y, top = blocks(x, size), 2 ** (bits - 1) - 1
    scale = y.abs().amax(1, keepdim=True).clamp(min=1e-30) / top
    return unblocked((y / scale + torch.rand_like(y)).floor().clamp(-top, top) * scale, x, size)


def top_k(x: Tensor, part: int = 16, fitted: bool = False) -> Tensor:
    """One in `part` entries in 4 bits: a sign and one of 8 levels under the largest in each 1024 elements."""
    magnitude = x.abs()
    kept = torch.zeros_like(x, dtype=torch.bool)
    kept[magnitude.topk(len(x) // part).indices] = True
    y = blocks(magnitude * kept, 1024)
    scale = y.amax(1, keepdim=True).bfloat16().float()
    share = torch.where(y > 0, y / scale, 1.0)
    level = (share.log2() / -0.75).round().clamp(0, 7)
    stands = torch.pow(2.0, -0.75 * torch.arange(8))
    if fitted:
        own = level[y > 0].long()
        sums = torch.zeros(8).index_add_(0, own, share[y > 0])
        counts = torch.zeros(8).index_add_(0, own, torch.ones(len(own)))
        stands = torch.where(counts > 0, sums / counts.clamp(min=1), stands)
    return unblocked(torch.where(y > 0, stands[level.long()] * scale, 0.0), x, 1024) * x.sign()


def alone(code: Code, whole: bool = False) -> Send:
    """Each rank encodes by itself: every slot, or with `whole` all slots as one vector."""

    def send(xs: list[Matrices]) -> tuple[Matrices, list[Matrices]]:
        sent = []
        for x in xs:
            if whole:
                vector = code(torch.cat([part.flatten() for part in x]))
                parts = vector.split([part.numel() for part in x])
                sent.append([own.view(part.shape) for own, part in zip(parts, x, strict=True)])
            else:
                sent.append([code(part.flatten()).view(part.shape) for part in x])
        return mean_of(sent), sent

    return send


def small_in_8(x: Tensor) -> Tensor:
    """4 bits, and 8 for slots of fewer than 1,024 elements."""
    return nearest(x, 8, 128) if x.numel() < 1024 else nearest(x, 4)


@dataclass
class LowRank:
    """PowerSGD, factors coded by `code`, vectors in 8 bits."""

    share: float
    code: Code = field(default_factory=lambda: partial(nearest, bits=4))
    bases: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, xs: list[Matrices]) -> tuple[Matrices, list[Matrices]]:
        means, sent = [], [[] for _ in xs]
        for i, own in enumerate(zip(*xs, strict=True)):
            rows = len(own[0])
            parts = [x.reshape(rows, -1) for x in own]
            rank = round(self.share * min(parts[0].shape))
            if own[0].ndim < 2 or rank * sum(parts[0].shape) * 4.25 * 2 >= parts[0].numel() * 8.125:
                decoded = [nearest(x.flatten(), 8, 128).view(x.shape) for x in own]
                means.append(sum(decoded) / len(decoded))
            else:
                q = self.bases.get(i)
                if q is None:
                    q = torch.rand(rank, parts[0].shape[1], generator=torch.Generator().manual_seed(i)) - 0.5
                p = sum(self.code(q @ m.T) for m in parts)
                basis = torch.linalg.qr(p.T).Q.T
                qs = [self.code(basis @ m) for m in parts]
                self.bases[i] = (total := sum(qs)) / total.norm().clamp(min=1e-20)
                decoded = [(basis.T @ each).view(x.shape) for each, x in zip(qs, own, strict=True)]
                means.append((basis.T @ total).view(own[0].shape) / len(qs))
            for rank_sent, each in zip(sent, decoded, strict=True):
                rank_sent.append(each)
        return means, sent


def mean_of(rows: list[Matrices]) -> Matrices:
    return [torch.stack(parts).mean(0) for parts in zip(*rows, strict=True)]


def plus(a: Matrices, b: Matrices, by: float = 1.0) -> Matrices:
    return [torch.add(x, y, alpha=by) for x, y in zip(a, b, strict=True)]


@dataclass
class Feedback:
    """Error feedback: adds the unsent part to the next gradient."""

    send: Send
    left: list[Matrices] = field(default_factory=list)

    def __call__(self, gradients: list[Matrices], step: int) -> Matrices:
        xs = [plus(g, e) for g, e in zip(gradients, self.left, strict=True)] if self.left else gradients
        mean, sent = self.send(xs)
        self.left = [plus(x, s, -1) for x, s in zip(xs, sent, strict=True)]
        return mean


@dataclass
class NoFeedback:
    send: Send

    def __call__(self, gradients: list[Matrices], step: int) -> Matrices:
        return self.send(gradients)[0]


@dataclass
class EControl:
    """D = C(eta e + g - h) is sent; e += g - h - D; h += D, whose mean is the gradient (Gao et al., 2023,
    https://arxiv.org/abs/2311.05645)."""

    send: Send
    eta: float = 0.1
    e: list[Matrices] = field(default_factory=list)
    h: list[Matrices] = field(default_factory=list)

    def __call__(self, gradients: list[Matrices], step: int) -> Matrices:
        if not self.e:
            self.e, self.h = ([[torch.zeros_like(x) for x in g] for g in gradients] for _ in range(2))
        new = [plus(g, h, -1) for g, h in zip(gradients, self.h, strict=True)]
        _, sent = self.send([plus(x, e, self.eta) for x, e in zip(new, self.e, strict=True)])
        self.e = [plus(plus(e, x), d, -1) for e, x, d in zip(self.e, new, sent, strict=True)]
        self.h = [plus(h, d) for h, d in zip(self.h, sent, strict=True)]
        return mean_of(self.h)


@dataclass
class Scaled:
    """Error feedback on x / w, w = sqrt(v) + a tenth of its mean, v the running mean of squared mean gradients."""

    send: Send
    v: Matrices = field(default_factory=list)
    left: list[Matrices] = field(default_factory=list)

    def __call__(self, gradients: list[Matrices], step: int) -> Matrices:
        w = [(s := each.sqrt()) + 0.1 * s.mean() + 1e-12 for each in self.v] or [
            torch.ones_like(x) for x in gradients[0]
        ]
        xs = [plus(g, e) for g, e in zip(gradients, self.left, strict=True)] if self.left else gradients
        mean, sent = self.send([[x / s for x, s in zip(own, w, strict=True)] for own in xs])
        mean = [x * s for x, s in zip(mean, w, strict=True)]
        self.left = [
            [x - d * s for x, d, s in zip(own, each, w, strict=True)] for own, each in zip(xs, sent, strict=True)
        ]
        before = self.v or [x.square() for x in mean]
        self.v = [0.95 * v + 0.05 * x.square() for v, x in zip(before, mean, strict=True)]
        return mean


@dataclass
class First:
    """One way for a number of steps, then another, which takes over the residual."""

    first: Feedback
    then: Feedback
    steps: int = 30

    def __call__(self, gradients: list[Matrices], step: int) -> Matrices:
        if step < self.steps:
            return self.first(gradients, step)
        if step == self.steps:
            self.then.left = self.first.left
        return self.then(gradients, step)


class Exact(NoFeedback):
    def __init__(self) -> None:
        super().__init__(alone(lambda x: x))


def topk(**options: Any) -> Send:
    return alone(partial(top_k, **options), whole=True)


def rounded(bits: int, **options: Any) -> Send:
    return alone(partial(nearest, bits=bits, **options))


WAYS: dict[str, Callable[[], Any]] = {
    "dense": Exact,
    "top-k 1/16": lambda: Feedback(topk()),
    "top-k 1/16, fitted levels": lambda: Feedback(topk(fitted=True)),
    "top-k 1/16, EControl 0.1": lambda: EControl(topk()),
    "top-k 1/16, x / sqrt(v)": lambda: Scaled(topk()),
    "PowerSGD 1/12": lambda: Feedback(LowRank(1 / 12)),
    "PowerSGD 1/12, fitted levels": lambda: Feedback(LowRank(1 / 12, partial(nearest, bits=4, fitted=True))),
    "PowerSGD 1/12, rotated": lambda: Feedback(LowRank(1 / 12, partial(rotated, bits=4))),
    "PowerSGD 1/12, EControl 0.1": lambda: EControl(LowRank(1 / 12)),
    "PowerSGD 1/12, x / sqrt(v)": lambda: Scaled(LowRank(1 / 12)),
    "2 bits": lambda: Feedback(rounded(2)),
    "2 bits, fitted levels": lambda: Feedback(rounded(2, fitted=True)),
    "2 bits, rotated": lambda: Feedback(alone(partial(rotated, bits=2))),
    "4 bits": lambda: Feedback(rounded(4)),
    "4 bits, fitted levels": lambda: Feedback(rounded(4, fitted=True)),
    "4 bits, best clip": lambda: Feedback(rounded(4, clips=(1.0, 0.85, 0.7, 0.55))),
    "4 bits, rotated": lambda: Feedback(alone(partial(rotated, bits=4))),
    "4 bits, small slots in 8": lambda: Feedback(alone(small_in_8)),
    "4 bits, no memory": lambda: NoFeedback(rounded(4)),
    "4 bits, stochastic, no memory": lambda: NoFeedback(alone(partial(stochastic, bits=4))),
    "8 bits": lambda: Feedback(rounded(8)),
    "4 bits for 30 steps, then 8": lambda: First(Feedback(rounded(4)), Feedback(rounded(8))),
    "8 bits for 30 steps, then 4": lambda: First(Feedback(rounded(8)), Feedback(rounded(4))),
}
"""By name; ways whose names begin with the same words send equal bytes."""
STATES = {
    "top-k 1/16, v of dense": ("top-k 1/16", False, True),
    "top-k 1/16, m of dense": ("top-k 1/16", True, False),
    "PowerSGD 1/12, v of dense": ("PowerSGD 1/12", False, True),
    "PowerSGD 1/12, m of dense": ("PowerSGD 1/12", True, False),
}
"""For AdamW: the way, and whether m and v take the dense gradient instead, which no real job has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="lstm-sgd,gpt-adamw,cnn-sgd")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ways", default=";".join([*WAYS, *STATES]))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed, task, way in product(arguments.seeds.split(","), arguments.tasks.split(","), arguments.ways.split(";")):
        runs = known_runs(f"feedback_{task}.json")
        if (way, int(seed)) in {(run["way"], run["seed"]) for run in runs} or (way in STATES and "adamw" not in task):
            continue
        runs.append({"task": task, "way": way, "seed": int(seed)} | train(task, way, int(seed)))
        save_more(f"feedback_{task}.json", runs=runs)
        print(f"{task}, seed {seed}, {way}: {runs[-1]}", flush=True)
    print("\n\n".join(map(table, arguments.tasks.split(","))))


def train(task: str, way: str, seed: int) -> dict[str, float]:
    """The held-out and the training loss of one run."""
    setting = TASKS[task]
    name, *dense = STATES.get(way, (way, False, False))
    model, send = setting.task.build_model(seed), WAYS[name]()
    optimizer = setting.optimizer_of(model.parameters(), setting.lr)
    if any(dense):
        optimizer = AdamW(list(model.parameters()), setting.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, STEPS))
    batches, losses = [setting.task.batches(rank, RANKS, seed) for rank in range(RANKS)], []
    torch.manual_seed(seed)
    for step in range(STEPS):
        gradients = []
        for own in batches:
            optimizer.zero_grad()
            loss = setting.task.training_loss(model, next(own))
            loss.backward()
            losses.append(loss.item())
            gradients.append([p.grad.detach().clone() for p in model.parameters()])
        mean = send(gradients, step)
        if isinstance(optimizer, AdamW):
            exact = mean_of(gradients)
            optimizer.squared = exact if dense[1] else mean
            mean = exact if dense[0] else mean
        for p, own in zip(model.parameters(), mean, strict=True):
            p.grad = own
        optimizer.step()
        schedule.step()
    figures = setting.task.figures(setting.task.sums(model, 0, 1, whole=True))
    return {"loss": figures["loss"], "training": fmean(losses[-RANKS * STEPS // 10 :])}


class AdamW(torch.optim.Optimizer):
    """AdamW of `fidelity.py`, whose v averages the squares of the gradients `squared`."""

    squared: Matrices

    def __init__(self, parameters: list[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.m, self.v = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        group, self.steps = self.param_groups[0], self.steps + 1
        for p, m, v, squared in zip(group["params"], self.m, self.v, self.squared, strict=True):
            m.lerp_(p.grad, 0.1)
            v.lerp_(squared.square(), 0.05)
            p.mul_(1 - 0.01 * group["lr"])
            size = (v / (1 - 0.95**self.steps)).sqrt_().add_(1e-8)
            p.addcdiv_(m, size, value=-group["lr"] / (1 - 0.9**self.steps))


def table(task: str) -> str:
    """The task's runs in Markdown."""
    runs = known_runs(f"feedback_{task}.json")
    return markdown((task, "held out against dense, by seed", "training"), against_dense(runs))


def against_dense(runs: list[dict[str, Any]]) -> list[list[str]]:
    """For each way its name and, by seed, how far both losses lie from dense's."""
    dense = {run["seed"]: run for run in runs if run["way"] == "dense"}
    rows = []
    for way in dict.fromkeys(run["way"] for run in runs):
        own = sorted((run for run in runs if run["way"] == way and run["seed"] in dense), key=lambda run: run["seed"])
        gaps = [[run[key] / dense[run["seed"]][key] - 1 for run in own] for key in ("loss", "training")]
        rows.append([way, *(", ".join(f"{gap:+.1%}" for gap in each) for each in gaps)])
    return rows


if __name__ == "__main__":
    main()
