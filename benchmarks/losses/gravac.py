"""GraVAC beside every static factor: time until the dense run's held-out loss, over slow, slower and changing links.

    python benchmarks/losses/gravac.py                          # three tasks, three seeds; half an hour
    python benchmarks/losses/gravac.py --tasks "LSTM, text" --seeds 0 --steps 60

A ResNet, a VGG and an LSTM of 0.1 to 0.3 million parameters train on two ranks over loopback: dense for `--steps`, all
others for twice as many steps. Losses are real, times are computed: a step takes 1, its computation, and the time of
its bytes on the link, where dense's take 8 (100 Mbit/s for a million parameters on a CPU), or 80. So one training of a
static factor counts for all links, and other work on the machine changes nothing. GraVAC, which reads the time, trains
once for each link. "0.8, then 80" is a link that becomes slower after half of the dense steps. "Rate falls" is the
ResNet at 8, whose learning rate falls to a tenth after half of the dense steps.

The goal is dense's last held-out loss + 1 %; it is reached where the mean of three evaluations in a row is there.
Writes benchmarks/results/gravac.json after every task and seed, and prints a Markdown table.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

RANKS, EVERY, LONGER, NEAR = 2, 6, 2, 1.01
"""Ranks, steps between evaluations, steps for each of dense's, and the goal over dense's loss."""


@dataclass(frozen=True)
class Case:
    """A training, and when its learning rate falls, as a share of the dense steps."""

    task: str
    options: tuple[str, ...]
    falls: float = inf


CASES = {
    "ResNet, digits": Case("digits", ("width=32",)),
    "VGG, fashion-mnist": Case("fashion-mnist", ("model=cnn", "width=16", "batch=8")),
    "LSTM, text": Case("lm", ("model=lstm", "width=160", "layers=1", "context=24")),
    "ResNet, digits, rate falls": Case("digits", ("width=32",), falls=0.5),
}
FACTORS = (10, 100, 1000)
RIVALS = ("dense", *(f"{factor}x" for factor in FACTORS), "Accordion")
LINKS = {"8": (8.0, 8.0), "80": (80.0, 80.0), "0.8, then 80": (0.8, 80.0)}
"""How long a dense step's bytes take before and after half of the dense steps, in steps of computation."""


def main() -> None:
    arguments = parse()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    cases = arguments.cases.split(";")
    if arguments.out:
        as_rank(arguments.out, lambda: [train(cases[0], way, seeds[0], arguments) for way in ways()])
    runs = []
    for case, seed in product(cases, seeds):
        own = [
            "--cases",
            case,
            "--seeds",
            str(seed),
            "--steps",
            str(arguments.steps),
            "--window",
            str(arguments.window),
        ]
        runs += collect(__file__, own, RANKS, "loopback")
        save("gravac.json", steps=arguments.steps, window=arguments.window, runs=runs)
    print(table(runs, arguments.steps))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=";".join(CASES))
    parser.add_argument("--steps", type=int, default=240, help="of the dense run")
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def ways() -> list[str]:
    """What counts for all links, and GraVAC over each."""
    return [*RIVALS, *(f"GraVAC, {link}" for link in LINKS)]


@dataclass
class Clock:
    """The time since the start of a training over `link`, in steps of computation."""

    link: tuple[float, float]
    dense_bytes: float
    steps: int
    """Of the dense run."""
    now: float = 0.0
    step: int = 0

    def __call__(self) -> float:
        return self.now

    def add(self, size: float) -> None:
        """A step that sent `size` bytes."""
        self.now += 1 + self.link[self.step >= self.steps // 2] * size / self.dense_bytes
        self.step += 1


def train(name: str, way: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Bytes of every step, held-out losses every `EVERY` steps, and a controller's decisions."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.optim.lr_scheduler import MultiStepLR

    from gradwire.controllers import gravac
    from gradwire.lab.experiments.recipe import Recipe
    from gradwire.lab.workloads.make_task import make_task

    case, steps = CASES[name], arguments.steps
    task = make_task(case.task, case.options)
    ddp = DDP(task.build_model(seed))
    optimizer = Recipe().make_optimizer(task, ddp.parameters())
    scheduler = MultiStepLR(optimizer, [round(case.falls * steps)] if case.falls < 1 else [])
    dense_bytes = 4 * sum(p.numel() for p in ddp.parameters())
    clock = Clock(LINKS.get(way.removeprefix("GraVAC, "), (0, 0)), dense_bytes, steps)
    gravac.perf_counter = clock  # pyright: ignore[reportPrivateImportUsage]
    compressor, controller = made(way, scheduler, arguments.window)
    handle = gw.attach(ddp, compressor, controller=controller)
    batches = task.batches(dist.get_rank(), RANKS, seed)
    sizes, losses, before = list[int](), list[float](), 0
    for step in range(1, round(steps * (1 if way == "dense" else LONGER)) + 1):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        loss = task.loss(ddp(inputs), targets)
        if "GraVAC" in way:
            controller.report(loss)
        loss.backward()
        optimizer.step()
        scheduler.step()
        sent = handle.stats().wire_bytes
        sizes.append(sent - before)
        before = sent
        clock.add(sizes[-1])
        if step % EVERY == 0 and dist.get_rank() == 0:
            losses.append(task.evaluate(ddp.module)["loss"])
    handle.detach()
    decisions = [[each.step, each.decision] for each in controller.decisions] if controller else []
    return {
        "case": name, "way": way, "seed": seed, "dense_bytes": dense_bytes, "bytes": sizes, "losses": losses,
        "decisions": decisions,
    }  # fmt: skip


def made(way: str, scheduler: Any, window: int) -> tuple[gw.compressors.Compressor, Any]:
    """Compressor and controller. Accordion's is PowerSGD of rank 4 or 1, as in GraVAC's paper."""
    if way == "Accordion":
        return gw.PowerSGD(4), gw.Accordion(4, 1, interval=2 * window, scheduler=scheduler)
    if "GraVAC" in way:
        return gw.TopK(0.1), gw.GraVAC(10, 1000, window=window, scaling="geometric", scheduler=scheduler)
    return gw.FP32() if way == "dense" else gw.TopK(1 / float(way.removesuffix("x"))), None


def reached(run: dict[str, Any], goal: float, link: str, steps: int) -> float | None:
    """The time until the mean of three evaluations is at the goal; None where it never was."""
    clock, ends = Clock(LINKS[link], run["dense_bytes"], steps), list[float]()
    for size in run["bytes"]:
        clock.add(size)
        ends.append(clock.now)
    means = [fmean(three) for three in zip(run["losses"], run["losses"][1:], run["losses"][2:], strict=False)]
    at = next((number for number, loss in enumerate(means) if loss <= goal), None)
    return None if at is None else ends[EVERY * (at + 3) - 1]


def compared(runs: list[dict[str, Any]], steps: int) -> Iterator[dict[str, Any]]:
    """For each case, link and seed: the time of each way to the goal."""
    for case, link, seed in product(CASES, LINKS, sorted({run["seed"] for run in runs})):
        own = {run["way"]: run for run in runs if (run["case"], run["seed"]) == (case, seed)}
        if own:
            here = [name for name in own if "GraVAC" not in name or name == f"GraVAC, {link}"]
            goal = NEAR * fmean(own["dense"]["losses"][-3:])
            took = {name.split(",")[0]: reached(own[name], goal, link, steps) for name in here}
            yield {"case": case, "link": link, "seed": seed, "took": took}


def over_best(row: dict[str, Any]) -> float:
    """GraVAC's time over that of the best static factor; infinite where GraVAC did not reach the goal."""
    best = min(row["took"][f"{factor}x"] or inf for factor in FACTORS)
    return (row["took"]["GraVAC"] or inf) / best


def table(runs: list[dict[str, Any]], steps: int) -> str:
    heads = ["case", "link", "seed", *RIVALS, "GraVAC", "over the best"]
    rows = []
    for row in compared(runs, steps):
        took = [f"{time:.0f}" if time else "-" for time in row["took"].values()]
        rows.append([row["case"], row["link"], str(row["seed"]), *took, f"{over_best(row):.2f}"])
    return markdown(heads, rows)


if __name__ == "__main__":
    main()
