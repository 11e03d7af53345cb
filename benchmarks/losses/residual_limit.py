"""A limit on the residual's norm: one batch of loss x 1e4 in the trainings of `skipped.py`, and the same without it.

    python benchmarks/losses/residual_limit.py      # minutes, two ranks

After each step a group's residual whose norm is above `limit` times the running mean of its norms (of about the last
twenty steps) is scaled down to that. The user clips the mean gradient's norm to twice the median of the last 20, or
skips `optimizer.step()` where it is above 8 times that and does not call `handle.skip()`.

Writes benchmarks/results/residual_limit.json and prints a Markdown table of losses.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

sys.path.append(str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire as gw
from benchmarks.losses.skipped import FAMILIES, LIMIT, SPIKE, SPIKE_AT, STEPS, digits
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

LIMITS, SEEDS = (None, 4.0, 1.5), (0, 1, 2)
NAMES = ("4 bits", "PowerSGD r2", "TopK 5 %", "EFSignSGD")
USERS = ("no spike", "no spike, clips", "clips", "leaves out step()")
FORGETS = 0.95


@dataclass(frozen=True)
class Limited(gw.Residual):
    """Error feedback whose residual is scaled down where its norm is above `limit` times the running mean."""

    limit: float = 4.0
    means: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def sent(self, flat) -> None:
        new = flat["residual"].write
        norm, key = float(new.norm()), new.numel()
        mean = self.means.get(key, norm)
        if norm > self.limit * mean > 0:
            new.mul_(self.limit * mean / norm)
            norm = self.limit * mean
        self.means[key] = FORGETS * mean + (1 - FORGETS) * norm


def main() -> None:
    if len(sys.argv) > 1:
        as_rank(sys.argv[-1], measure)
    (rows,) = collect(__file__, [], 2, "loopback")

    def cell(family: str, limit: float | None, user: str) -> str:
        own = [row["loss"] for row in rows if (row["family"], row["limit"], row["user"]) == (family, limit, user)]
        return f"{fmean(own):.3f} ({min(own):.3f} to {max(own):.3f})"

    cells = [
        [f"{name}, {limit or 'none'}", *(cell(name, limit, u) for u in USERS)] for name in NAMES for limit in LIMITS
    ]
    print(markdown(["family, limit", *USERS], cells))
    save("residual_limit.json", losses=rows)


def measure() -> list[list[dict]]:
    torch.set_num_threads(1)
    return [
        [
            {"family": name, "limit": limit, "user": user, "seed": seed, "loss": train(name, limit, user, seed)}
            for name in NAMES
            for limit in LIMITS
            for user in USERS
            for seed in SEEDS
        ]
    ]


def train(name: str, limit: float | None, user: str, seed: int) -> float:
    """The loss over all digits after the last step."""
    inputs, labels = digits()
    torch.manual_seed(seed)
    ddp = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)))
    handle = gw.attach(ddp, FAMILIES[name], memory=Limited(limit=limit) if limit else gw.Residual())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    norms = list[float]()
    for step in range(STEPS):
        batch = torch.randint(len(inputs), (32,), generator=generator)
        loss = nn.functional.cross_entropy(ddp(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        (loss * (SPIKE if step == SPIKE_AT and "no spike" not in user else 1)).backward()
        norm = float(nn.utils.get_total_norm(p.grad for p in ddp.parameters() if p.grad is not None))
        if len(norms) > 10 and user == "leaves out step()" and norm > LIMIT * median(norms[-20:]):
            continue
        if len(norms) > 10 and "clips" in user:
            nn.utils.clip_grad_norm_(ddp.parameters(), 2 * median(norms[-20:]))
        norms.append(norm)
        optimizer.step()
    handle.detach()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(ddp.module(inputs), labels))


if __name__ == "__main__":
    main()
