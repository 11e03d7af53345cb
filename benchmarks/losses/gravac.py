"""GraVAC beside every static factor: time until the dense run's held-out loss, over slow, slower and changing links.

    python benchmarks/losses/gravac.py                                # five trainings, six seeds; an hour or two
    python benchmarks/losses/gravac.py --cases "LSTM" --seeds 0

A ResNet, a VGG and an LSTM of 0.1 to 0.3 million parameters train on two ranks over loopback, all but dense for twice
as many steps. Losses are real, times are computed: a step takes 1, its computation, and the time of its bytes on the
link, where dense's take 8 (100 Mbit/s for a million parameters on a CPU), or 80. So one training of a static factor
counts for all links, and other work on the machine changes nothing. GraVAC, which reads the time, trains once for each
link. "0.8→80" is a link that becomes slower after half of the dense steps. In the last cases the learning rate
falls to a tenth then, and GraVAC has min_gain=0.95, as its docstring says.

The goal is dense's last held-out loss + 1 %; it is reached where the mean of three evaluations in a row is there.
Writes benchmarks/results/gravac.json after every case and seed, skips those that it has, and prints a Markdown table.
"""

import argparse
import sys
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import gradwire as gw
from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

RANKS, EVERY, LONGER, NEAR, WINDOW = 2, 6, 2, 1.01, 8
"""Ranks, steps between evaluations, steps for each of dense's, the goal over dense's loss, and steps of a window."""


@dataclass(frozen=True)
class Case:
    """A training: its dense steps, its learning rate if it is not the task's, after how many steps that falls to a
    tenth, and GraVAC's `min_gain`."""

    task: str
    options: tuple[str, ...]
    steps: int = 240
    rate: float | None = None
    falls: int = 0
    min_gain: float | None = None


RESNET = ("width=32", "batch=32")
LSTM = ("model=lstm", "width=160", "layers=1", "context=24", "carry=true")
CASES = {
    "ResNet": Case("digits", RESNET, rate=0.003),
    "VGG": Case("fashion-mnist", ("model=cnn", "width=16", "batch=8")),
    "LSTM": Case("lm", LSTM),
    "LSTM, rate falls": Case("lm", LSTM, falls=120, min_gain=0.95),
    "ResNet, rate falls": Case("digits", RESNET, rate=0.003, falls=120, min_gain=0.95),
}
FACTORS = (10, 100, 1000)
RIVALS = ("dense", *(f"{factor}x" for factor in FACTORS), "Accordion")
LINKS = {"8": (8.0, 8.0), "80": (80.0, 80.0), "0.8→80": (0.8, 80.0)}
"""How long a dense step's bytes take before and after half of the dense steps, in steps of computation."""


def main() -> None:
    arguments = parse()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    cases = arguments.cases.split(";")
    as_rank(lambda: [train(cases[0], way, seeds[0]) for way in ways()])
    rows = known_runs("gravac.json", "rows")
    done = {(row["case"], row["seed"]) for row in rows}
    for case, seed in product(cases, seeds):
        if (case, seed) in done:
            continue
        runs = collect(__file__, ["--cases", case, "--seeds", str(seed)], RANKS, "loopback")
        rows += [{"case": case, "link": link, "seed": seed} | compared(runs, case, link) for link in LINKS]
        save_more("gravac.json", "rows", rows=rows)
    print(table(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=";".join(CASES))
    parser.add_argument("--seeds", default="0,1,2,3,4,5")
    return parser.parse_args()


def ways() -> list[str]:
    """The ways that are trained: its rivals, once for all links, and GraVAC, once for each link."""
    return [*RIVALS, *(f"GraVAC, {link}" for link in LINKS)]


@dataclass
class Clock:
    """The time since the start of a training over `link`, in steps of computation."""

    link: tuple[float, float]
    dense_bytes: float
    case: str
    now: float = 0.0
    step: int = 0

    def __call__(self) -> float:
        return self.now

    def add(self, size: float) -> None:
        """A step that sent `size` bytes."""
        self.now += 1 + self.link[self.step >= CASES[self.case].steps // 2] * size / self.dense_bytes
        self.step += 1


def train(name: str, way: str, seed: int) -> dict[str, Any]:
    """Bytes of every step, held-out losses every `EVERY` steps, and a controller's decisions."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.optim.lr_scheduler import MultiStepLR

    from gradwire.controllers import gravac
    from gradwire.lab.experiments.recipe import Recipe
    from gradwire.lab.workloads.make_task import make_task

    case, steps = CASES[name], CASES[name].steps
    task = make_task(case.task, case.options)
    ddp = DDP(task.build_model(seed))
    optimizer = Recipe(lr=case.rate).make_optimizer(task, ddp.parameters())
    scheduler = MultiStepLR(optimizer, [case.falls] if case.falls else [])
    dense_bytes = 4 * sum(p.numel() for p in ddp.parameters())
    clock = Clock(LINKS.get(way.removeprefix("GraVAC, "), (0, 0)), dense_bytes, name)
    gravac.perf_counter = clock  # pyright: ignore[reportPrivateImportUsage]
    compressor, controller = made(way, scheduler, case)
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
    decisions = [f"{each.step}: {each.decision}" for each in controller.decisions] if controller else []
    moves = [text for text in decisions if "stay at" not in text]
    return {"way": way, "dense_bytes": dense_bytes, "bytes": sizes, "losses": losses, "decisions": moves}


def made(way: str, scheduler: Any, case: Case) -> tuple[gw.compressors.Compressor, Any]:
    """Compressor and controller. Accordion's is PowerSGD of rank 4 or 1, as in GraVAC's paper."""
    if way == "Accordion":
        return gw.PowerSGD(4), gw.Accordion(4, 1, interval=2 * WINDOW, scheduler=scheduler)
    if "GraVAC" in way:
        return gw.TopK(0.1), gw.GraVAC(10, 1000, WINDOW, min_gain=case.min_gain, scheduler=scheduler)
    return gw.FP32() if way == "dense" else gw.TopK(1 / float(way.removesuffix("x"))), None


def compared(runs: list[dict[str, Any]], case: str, link: str) -> dict[str, Any]:
    """The time and the steps of each way to the goal over a link, None where it never was there, its loss at the end
    over dense's, and GraVAC's decisions."""
    own = {run["way"]: run for run in runs}
    dense = fmean(own["dense"]["losses"][-3:])
    over_link = [*RIVALS, f"GraVAC, {link}"]
    took, steps, ends = dict[str, float | None](), dict[str, int | None](), dict[str, float]()
    for way in over_link:
        name, clock = way.split(",")[0], Clock(LINKS[link], own[way]["dense_bytes"], case)
        took[name], steps[name] = reached(own[way], NEAR * dense, clock) or (None, None)
        ends[name] = fmean(own[way]["losses"][-3:]) / dense
    return {"took": took, "steps": steps, "ends": ends, "decisions": own[over_link[-1]]["decisions"]}


def reached(run: dict[str, Any], goal: float, clock: Clock) -> tuple[float, int] | None:
    """Time and steps until the mean of three evaluations is at the goal; None where it never was."""
    ends = list[float]()
    for size in run["bytes"]:
        clock.add(size)
        ends.append(clock.now)
    means = [fmean(three) for three in zip(run["losses"], run["losses"][1:], run["losses"][2:], strict=False)]
    at = next((number for number, loss in enumerate(means) if loss <= goal), None)
    return None if at is None else (ends[(steps := EVERY * (at + 3)) - 1], steps)


def over_best(row: dict[str, Any]) -> float:
    """GraVAC's time over that of the best static factor; infinite where GraVAC did not reach the goal."""
    own, best = row["took"]["GraVAC"], min(row["took"][f"{factor}x"] or inf for factor in FACTORS)
    return own / best if own else inf


def table(rows: list[dict[str, Any]]) -> str:
    heads = ["case", "link", "seed", *(f"{way}: time (steps)" for way in (*RIVALS, "GraVAC")), "over the best"]
    return markdown(heads, [[*_where(row), *_times(row), f"{over_best(row):.2f}"] for row in rows])


def _where(row: dict[str, Any]) -> list[str]:
    return [row["case"], row["link"], str(row["seed"])]


def _times(row: dict[str, Any]) -> list[str]:
    """A cell for each way."""
    return [f"{time:.0f} ({row['steps'][way]})" if time else "never" for way, time in row["took"].items()]


if __name__ == "__main__":
    main()
