"""Controllers: bytes that L-GreCo saves at equal error, and the time in which GraVAC reaches the dense run's metric.

    python benchmarks/losses/controllers.py                     # all; 4 hosts at 100 Mbit/s, three seeds
    python benchmarks/losses/controllers.py --part lgreco       # bytes at equal error, and ms of the dynamic programme
    python benchmarks/losses/controllers.py --part gravac --tasks digits --steps 200 --seeds 0 --link loopback --hosts 2

L-GreCo: the small tasks of `gradwire train --suite gravac` (a ResNet, a VGG, an LSTM) train on two ranks with a uniform
setting, and its decisions say how many bytes of payload it would send at equal error. Then they train with its plans in
force: all bytes, and the held-out loss. GraVAC stands beside dense and static factors (10x to 1000x in elements), which
train for half as many steps more than dense, since their steps are shorter. The figure is the time of rank 0's steps
until the held-out metric is within 0.5 points of accuracy, or 1 % of loss, of the dense run's last.
Writes benchmarks/results/lgreco.json and gravac.json, and prints Markdown tables.
"""

import argparse
import subprocess
import sys
import time
from itertools import chain, product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from gradwire.controllers.allocate import allocate
from gradwire.lab.experiments.training import Training
from gradwire.lab.experiments.training_suites import training_suite
from gradwire.lab.results import Record, Run, read_lines

FACTORS = (10, 100, 1000)
TASKS = {
    "digits": ("accuracy", ("width=96",)),
    "fashion-mnist": ("accuracy", ("model=cnn", "width=48", "batch=8")),
    "lm": ("loss", ("model=lstm", "width=320", "layers=1", "context=24")),
}
"""The metric, and the task's options: models whose dense gradient takes half a second at 100 Mbit/s between 4 hosts."""
LONGER = 1.5


def main() -> None:
    arguments = parse()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    if arguments.out:
        jobs = product(training_suite("gravac", None), (gw.TopK(0.01), gw.PowerSGD(4)), seeds)
        as_rank(arguments.out, lambda: [layers(*job) for job in jobs])
    if arguments.part in ("lgreco", "all"):
        took_ms, rows = programme_ms(), collect(__file__, ["--seeds", arguments.seeds], 2, "loopback")
        print(f"300 layers, 8 choices: {took_ms:.1f} ms\n\n{saved_bytes(rows)}\n")
        save("lgreco.json", programme_ms=took_ms, rows=rows)
    if arguments.part in ("gravac", "all"):
        rows = []
        for task, seed in product(arguments.tasks.split(","), seeds):
            rows += compare(task, seed, arguments)
            save("gravac.json", link=arguments.link, hosts=arguments.hosts, rows=rows)
        print(f"{markdown(rows)}\n\n{ratios(rows)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="all", choices=("lgreco", "gravac", "all"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--steps", type=int, default=400, help="of the dense run")
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


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
    heads = ("task", "compressor", "would save, by decision; by seed", "median", "saves in force", "median", "loss")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for task, compressor in dict.fromkeys((r["task"], r["compressor"]) for r in rows):
        own = [r for r in rows if (r["task"], r["compressor"]) == (task, compressor)]
        would = [r["uniform"]["saved"] for r in own]
        does = [r["uniform"]["bytes"] / r["adapted"]["bytes"] for r in own]
        losses = ", ".join(f"{r['uniform']['loss']:.3f} → {r['adapted']['loss']:.3f}" for r in own)
        seeds = "; ".join(", ".join(f"{times:.2f}" for times in saved) for saved in would)
        lines.append(
            f"| {task} | {compressor} | {seeds} | {median(chain(*would)):.2f} "
            f"| {', '.join(f'{times:.2f}' for times in does)} | {median(does):.2f} | {losses} |"
        )
    return "\n".join(lines)


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


def compare(task: str, seed: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All configurations on one task with one seed."""
    names = [f"topk:{1 / factor:g}" for factor in FACTORS]
    names.append(f"topk:0.1+gravac:10,1000,window={arguments.window},scaling=geometric")
    metric, _ = TASKS[task]
    runs = trained(["dense"], task, seed, arguments.steps, arguments)
    runs += trained(names, task, seed, round(LONGER * arguments.steps), arguments)
    goal = held_out(runs[0].last, metric)
    goal = goal - 0.005 if metric == "accuracy" else 1.01 * goal
    return [row(run, task, seed, metric, goal) for run in runs]


def trained(names: list[str], task: str, seed: int, steps: int, arguments: argparse.Namespace) -> list[Run]:
    """Runs `gradwire train` with these configurations."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gradwire", "train", *names, "--task", task, "--hosts", arguments.hosts,
                   "--steps", steps, "--seed", seed, "--out", folder]  # fmt: skip
        command += [part for option in TASKS[task][1] for part in ("--set", option)]
        if arguments.link != "loopback":
            command += ["--link", arguments.link]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        (home,) = Path(folder).iterdir()
        return [Run(name, read(home, name)) for name in names]


def read(home: Path, name: str) -> list[Record]:
    from gradwire.lab.configuration import parse as parse_configuration

    path = home / parse_configuration(name).slug / "metrics.jsonl"
    return [Record.from_line(line) for line, _ in read_lines(path)]


def held_out(record: Record, metric: str) -> float:
    assert record.held_out
    return record.held_out[metric]


def row(run: Run, task: str, seed: int, metric: str, goal: float) -> dict[str, Any]:
    better = 1 if metric == "accuracy" else -1
    reached = [r.wall_s for r in run.evaluated if better * (held_out(r, metric) - goal) >= 0]
    return {
        "task": task, "seed": seed, "configuration": run.configuration, metric: held_out(run.last, metric),
        "seconds_to_goal": reached[0] if reached else None, "wall_s": run.last.wall_s,
        "megabytes": run.last.totals.wire_bytes / 1e6, "ratio": run.last.totals.ratio, "decisions": run.decisions,
    }  # fmt: skip


def markdown(rows: list[dict[str, Any]]) -> str:
    heads = "task", "configuration", "last metric", "s to that of dense, of how many", "MB per rank", "ratio in bytes"
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for task, name in dict.fromkeys((r["task"], r["configuration"]) for r in rows):
        own = [r for r in rows if (r["task"], r["configuration"]) == (task, name)]
        seconds = [r["seconds_to_goal"] for r in own if r["seconds_to_goal"] is not None]
        there = f"{median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})" if seconds else "-"
        there += f", {len(seconds)} of {len(own)}"
        metrics = [r[TASKS[task][0]] for r in own]
        lines.append(
            f"| {task} | {name} | {median(metrics):.4f} ({min(metrics):.4f} to {max(metrics):.4f}) | {there} "
            f"| {median(r['megabytes'] for r in own):.1f} | {median(r['ratio'] for r in own):.1f} |"
        )
    return "\n".join(lines)


def ratios(rows: list[dict[str, Any]]) -> str:
    """GraVAC's time to the goal beside that of the best static factor, of dense and of 10x, run by run."""
    heads = "task", "seed", "GraVAC s", "best static", "times best static", "sooner than dense", "than 10x"
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for task, seed in dict.fromkeys((r["task"], r["seed"]) for r in rows):
        own = {r["configuration"]: r["seconds_to_goal"] for r in rows if (r["task"], r["seed"]) == (task, seed)}
        dense, *static, adaptive = own
        best = min((name for name in static if own[name]), key=lambda name: own[name])
        took = own[adaptive]
        pairs = (took, own[best]), (own[dense], took), (own[static[0]], took)
        cells = [f"{took:.1f}" if took else "not there", f"{best} {own[best]:.1f}"]
        cells += [f"{longer / shorter:.2f}" if longer and shorter else "-" for longer, shorter in pairs]
        lines.append(f"| {task} | {seed} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
