"""Loss against bytes after equal steps: codes with error feedback, older configurations of equal bytes, and dense.

    python benchmarks/losses/fidelity.py           # all of it
    python benchmarks/losses/fidelity.py --tasks gpt-adamw --seeds 0
    python benchmarks/losses/fidelity.py --rates   # dense at several rates: how the rates were chosen

Two ranks over gloo. A byte-level LSTM with SGD and momentum 0.9 and a byte-level GPT with AdamW on the standard
library's sources, a small VGG on Fashion-MNIST (Debian's dataset-fashion-mnist) with both. The rates are dense's best;
each grows over the first twentieth of the steps and falls to a tenth along a cosine. The same seed means the same
weights and batches, so that only the exchange differs. The whole held-out set is evaluated. Bytes are those that one
rank handed to the transport, vectors, scales and flags included.

Writes benchmarks/results/fidelity.json after every run, and prints Markdown tables; `make benchmarks` draws it. An
interrupted run goes on where it ended; remove the result after a change of this file.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
from matplotlib.figure import Figure

from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.rates import up_and_down
from benchmarks.shared.tables import markdown
from gradwire.lab.configuration import parse
from gradwire.lab.workloads import FashionMnist, LanguageModel, Task
from gradwire.report.pictures import look
from gradwire.transports import ProcessGroup, Transport

RANKS = 2
STEPS = 300
FILE = "fidelity.json"

CONFIGURATIONS = {
    "dense": "dense",
    "8 bits, stochastic (QSGD)": "qsgd",
    "bf16": "bf16",
    "fp16": "fp16",
    "8 bits": "quantized:8",
    "4 bits": "quantized:4",
    "4 bits, block 32": "quantized:4,block=32",
    "4 bits after 30 steps in 8": "quantized:4+warmup:bits=8,steps=30",
    "PowerSGD 1/3 in 4 bits": "powersgd:0.3333,bits=4",
    "PowerSGD 1/3 in 4 bits after 30 steps in 8": "powersgd:0.3333,bits=4+warmup:bits=8,steps=30",
    "PowerSGD r4": "powersgd:4",
    "PowerSGD 2/9 in 4 bits": "powersgd:0.22222,bits=4",
    "PowerSGD 1/6 in 4 bits": "powersgd:0.16667,bits=4",
    "PowerSGD r2": "powersgd:2",
    "PowerSGD 1/12 in 4 bits": "powersgd:0.08333,bits=4",
    "PowerSGD r1": "powersgd:1",
    "top-k 1/16 in 10 bits": "topk:0.0625,value_bits=4",
    "top-k 1.25 %": "topk:0.0125",
}
"""From names to configurations as on the command line; each code follows the older one of equal bytes."""


@dataclass(frozen=True)
class Setting:
    """A task, its optimizer and `lr`, dense's best of `rates`. The task may read a data set, so it is made on first
    use."""

    make: Callable[[], Task]
    optimizer: str
    lr: float
    rates: tuple[float, ...]

    @cached_property
    def task(self) -> Task:
        return self.make()

    def optimizer_of(self, parameters: Any, lr: float) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=lr, momentum=0.9)
        return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)


def text(**model: Any) -> Callable[[], Task]:
    return lambda: LanguageModel(context=64, batch=8, max_bytes=2_000_000, **model)


def clothes() -> Task:
    return FashionMnist(model="cnn", width=16, batch=32)


TASKS = {
    "lstm-sgd": Setting(text(model="lstm", width=160, layers=1), "sgd", 2.0, (1.0, 2.0, 3.0)),
    "gpt-adamw": Setting(text(model="gpt", width=96, layers=2, heads=3), "adamw", 0.004, (0.002, 0.004, 0.008)),
    "cnn-sgd": Setting(clothes, "sgd", 0.05, (0.02, 0.05, 0.1)),
    "cnn-adamw": Setting(clothes, "adamw", 0.003, (0.001, 0.003, 0.01)),
    "lstm-sgd-2m": Setting(text(model="lstm", width=480, layers=1), "sgd", 2.0, (1.0, 2.0, 3.0)),
    "gpt-adamw-2m": Setting(text(model="gpt", width=240, layers=3, heads=3), "adamw", 0.002, (0.001, 0.002, 0.004)),
}


def main() -> None:
    arguments = arguments_of()
    as_rank(lambda: job(arguments))
    for seed, task in product(arguments.seeds.split(","), arguments.tasks.split(",")):
        if missing(arguments, task, int(seed)):
            given = ["--seeds", seed, "--tasks", task, "--steps", str(arguments.steps)]
            given += ["--names", arguments.names, "--save", arguments.save]
            collect(__file__, [*given, *(["--rates"] if arguments.rates else [])], RANKS, "loopback")
    runs = known_runs(arguments.save)
    tasks = [task for task in TASKS if of_task(task, arguments.steps, runs)]
    print("\n\n".join(table(task, arguments.steps, runs) for task in tasks))


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--names", default=";".join(CONFIGURATIONS), help="names or texts, between semicolons")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--save", default=FILE)
    parser.add_argument("--rates", action="store_true", help="dense at several rates instead")
    return parser.parse_args()


def missing(arguments: argparse.Namespace, task: str, seed: int) -> list[tuple[str, float]]:
    """Names and rates of the runs that the results file lacks."""
    setting = TASKS[task]
    rates = setting.rates if arguments.rates else (setting.lr,)
    names = ("dense",) if arguments.rates else tuple(arguments.names.split(";"))
    done = {(run["task"], run["seed"], run["steps"], run["name"], run["lr"]) for run in known_runs(arguments.save)}
    return [run for run in product(names, rates) if (task, seed, arguments.steps, *run) not in done]


def job(arguments: argparse.Namespace) -> None:
    """Trains the missing runs of one task and seed, and writes the results after each."""
    import torch.distributed as dist

    task, seed = arguments.tasks, int(arguments.seeds)
    results, transport = known_runs(arguments.save), ProcessGroup.own()
    for name, lr in missing(arguments, task, seed):
        found = train(CONFIGURATIONS.get(name, name), task, seed, lr, arguments.steps, transport)
        found = {"task": task, "seed": seed, "name": name, "lr": lr} | found
        results.append(found)
        if dist.get_rank() == 0:
            print(f"{task} {seed} {name} at {lr}: {found['loss']:.4f}, {found['bytes']:.0f} bytes", end="", flush=True)
            save_more(arguments.save, ranks=RANKS, runs=results)


def train(text: str, task: str, seed: int, lr: float, steps: int, transport: Transport) -> dict[str, Any]:
    """One run: its held-out figures, its training losses, and one rank's bytes per step."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    setting, configuration = TASKS[task], parse(text)
    ddp = DDP(setting.task.build_model(seed))
    handle = configuration.attach(ddp, seed, configuration.controller, transport=transport)
    optimizer = setting.optimizer_of(ddp.parameters(), lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    batches = setting.task.batches(dist.get_rank(), RANKS, seed)
    losses = torch.zeros(steps)
    for step in range(steps):
        optimizer.zero_grad()
        loss = setting.task.training_loss(ddp, next(batches))
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[step] = loss.detach()
    dense = 4 * sum(p.numel() for p in ddp.parameters())
    sent = handle.stats().wire_bytes / steps if handle else dense
    if handle:
        handle.detach()
    sums = torch.tensor(setting.task.sums(ddp.module, dist.get_rank(), RANKS, whole=True), dtype=torch.float64)
    dist.all_reduce(sums)
    dist.all_reduce(losses)
    last = float(losses[-steps // 10 :].mean()) / RANKS
    figures = setting.task.figures(sums.tolist())
    return {"steps": steps, "bytes": sent, "dense_bytes": dense, "training": last, **figures}


def rate(step: int, steps: int) -> float:
    """The factor of the learning rate at a step."""
    return up_and_down(step, steps / 20, steps)


def against_dense(runs: list[dict[str, Any]], name: str, key: str = "loss") -> list[float]:
    """The relative difference of each loss to dense's, by seed."""
    dense = {run["seed"]: run[key] for run in runs if run["name"] == "dense"}
    return [run[key] / dense[run["seed"]] - 1 for run in runs if run["name"] == name and run["seed"] in dense]


def of_task(task: str, steps: int, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    wanted = task, steps, TASKS[task].lr
    mine = [run for run in results if (run["task"], run["steps"], run["lr"]) == wanted]
    return sorted(mine, key=lambda run: run["seed"])


def table(task: str, steps: int, results: list[dict[str, Any]]) -> str:
    runs = of_task(task, steps, results)
    dense = ", ".join(format(run["loss"], ".4f") for run in runs if run["name"] == "dense")
    lines: list[list[str]] = []
    for name in dict.fromkeys([*CONFIGURATIONS, *(run["name"] for run in runs)]):
        own = [run for run in runs if run["name"] == name]
        if own and name != "dense":
            held_out = ", ".join(f"{gap:+.1%}" for gap in against_dense(runs, name))
            training = mean(against_dense(runs, name, "training"))
            fewer = own[0]["dense_bytes"] / own[0]["bytes"]
            lines.append([name, f"{own[0]['bytes']:.0f}", f"{fewer:.1f}", held_out, f"{training:+.1%}"])
    columns = ("", "bytes a step", "x", "held out against dense, by seed", "training")
    return f"{task}, {steps} steps, lr {TASKS[task].lr}, dense {dense}\n\n{markdown(columns, lines)}"


DRAWN = {
    "8 bits (QSGD)": ("8 bits, stochastic (QSGD)",),
    "4 bits": ("4 bits",),
    "PowerSGD in 4 bits": tuple(f"PowerSGD {part} in 4 bits" for part in ("1/3", "2/9", "1/6", "1/12")),
    "PowerSGD r4, r2, r1 in float32": tuple(f"PowerSGD r{rank}" for rank in (4, 2, 1)),
    "top-k 1/16 in 10 bits": ("top-k 1/16 in 10 bits",),
    "top-k 1.25 %": ("top-k 1.25 %",),
    "4 bits, PowerSGD 1/3, after 30 steps in 8": tuple(name for name in CONFIGURATIONS if "after" in name),
}
"""The lines of the picture."""


def picture(steps: int, results: list[dict[str, Any]]) -> Figure:
    """The mean held-out loss against dense's, over how many times fewer bytes are sent; bars span the seeds."""
    tasks = [task for task in TASKS if against_dense(of_task(task, steps, results), "4 bits")]
    down = max(1, ceil(len(tasks) / 2))
    # letters stay readable in a page's column
    drawn = Figure(figsize=(8, 3.4 * down + 1), layout="constrained")
    for panel, task in zip(drawn.subplots(down, 2, squeeze=False).flat, tasks, strict=False):
        runs = of_task(task, steps, results)
        for index, (family, names) in enumerate(DRAWN.items()):
            points = [(run, against_dense(runs, run["name"])) for run in runs if run["name"] in names]
            points = sorted({run["name"]: (run["dense_bytes"] / run["bytes"], gaps) for run, gaps in points}.values())
            panel.errorbar(
                [fewer for fewer, _ in points], [100 * mean(gaps) for _, gaps in points],
                yerr=[[100 * (mean(g) - min(g)) for _, g in points], [100 * (max(g) - mean(g)) for _, g in points]],
                label=family, **look(index),
            )  # fmt: skip
        panel.set(title=task, xscale="log", xlabel="times fewer bytes", ylabel="held-out loss against dense, %")
        panel.set_xticks(ticks := [4, 8, 16, 32, 64], labels=list(map(str, ticks)))
        panel.set_xticks([], minor=True)
    if tasks:
        drawn.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return drawn


if __name__ == "__main__":
    main()
