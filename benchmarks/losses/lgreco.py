"""L-GreCo: bytes that it saves at equal error.

    python benchmarks/losses/lgreco.py              # three small tasks, three seeds, two ranks; half an hour
    python benchmarks/losses/lgreco.py --seeds 0

The small tasks of `gradwire train --suite gravac` (a ResNet, a VGG, an LSTM) train on two ranks with a uniform setting,
and L-GreCo's decisions say how many bytes of payload it would send at equal error. Then they train with its plans in
force: all bytes, and the held-out loss. Beside it, the milliseconds of its dynamic programme.
Writes benchmarks/results/lgreco.json, and prints a Markdown table.
"""

import argparse
import sys
import time
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from gradwire.controllers.allocate import allocate
from gradwire.lab.experiments.training import Training
from gradwire.lab.experiments.training_suites import training_suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    jobs = product(training_suite("gravac", None), (gw.TopK(0.01), gw.PowerSGD(4)), seeds)
    as_rank(lambda: [layers(*job) for job in jobs])
    took_ms, rows = programme_ms(), collect(__file__, ["--seeds", arguments.seeds], 2, "loopback")
    print(f"300 layers, 8 choices: {took_ms:.1f} ms\n\n{saved_bytes(rows)}\n")
    save("lgreco.json", programme_ms=took_ms, rows=rows)


class Looks(gw.LGreCo):
    """L-GreCo that records its decisions and leaves the uniform setting in force."""

    def decide(self, seen: Any) -> None:
        super().decide(seen)


def layers(training: Training, compressor: gw.compressors.Compressor, seed: int) -> dict[str, Any]:
    """Two trainings: with the uniform setting, while L-GreCo only records its decisions, and under L-GreCo."""
    name = f"{training.task} ({training.options[0].removeprefix('model=')})"
    row = {"task": name, "compressor": type(compressor).__name__, "seed": seed}
    for way, controller in {"uniform": Looks, "adapted": gw.LGreCo}.items():
        row[way] = train(training, compressor, seed, controller(interval=(training.recipe.steps or 0) // 4))
    return row


def train(training: Training, compressor: gw.compressors.Compressor, seed: int, controller: Any) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    from gradwire.lab.experiments.recipe import Recipe
    from gradwire.lab.workloads.make_task import make_task

    task = make_task(training.task, training.options)
    ddp = DDP(task.build_model(seed))
    handle = gw.attach(ddp, compressor, controller=controller)
    optimizer = Recipe().make_optimizer(task, ddp.parameters())
    batches = task.batches(dist.get_rank(), dist.get_world_size(), seed)
    for _ in range(training.recipe.steps or 0):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        task.loss(ddp(inputs), targets).backward()
        optimizer.step()
    sent = handle.stats().wire_bytes
    handle.detach()
    decisions = [decision.decision for decision in controller.decisions]
    saved = [1 / float(decision.split()[0]) for decision in decisions]
    return {"decisions": decisions, "saved": saved, "bytes": sent, "loss": task.evaluate(ddp.module)["loss"]}


def saved_bytes(rows: list[dict[str, Any]]) -> str:
    """A table: predicted savings by the decisions, bytes saved over a whole training, and held-out losses."""
    columns = "task", "compressor", "would save, by decision; by seed", "median", "saves in force", "median", "loss"
    cells: list[list[str]] = []
    for task, compressor in dict.fromkeys((r["task"], r["compressor"]) for r in rows):
        own = [r for r in rows if (r["task"], r["compressor"]) == (task, compressor)]
        would = [r["uniform"]["saved"] for r in own]
        does = [r["uniform"]["bytes"] / r["adapted"]["bytes"] for r in own]
        losses = ", ".join(f"{r['uniform']['loss']:.3f} → {r['adapted']['loss']:.3f}" for r in own)
        seeds = "; ".join(", ".join(f"{times:.2f}" for times in saved) for saved in would)
        times = ", ".join(f"{each:.2f}" for each in does)
        cells.append([task, compressor, seeds, f"{median(chain(*would)):.2f}", times, f"{median(does):.2f}", losses])
    return markdown(columns, cells)


def programme_ms() -> float:
    """The least time of L-GreCo's dynamic programme for 300 layers of 8 choices."""
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(10, 2, (300, 1)) * 2.0 ** np.arange(8) / 800
    errors = np.sqrt(sizes[:, :1]) * np.exp(-rng.uniform(0.01, 0.3, (300, 1)) * 2.0 ** np.arange(8))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        allocate(sizes, errors, float(errors[:, 3].sum()))
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


if __name__ == "__main__":
    main()
