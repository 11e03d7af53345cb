"""Does `gw.attach(ddp, candidates=[...])` choose the candidate that reaches dense's loss soonest?

    python benchmarks/scheduler/choices.py --curves   # losses by step, under any load; 6 minutes a task
    python benchmarks/scheduler/choices.py            # step times on a quiet machine; 90 seconds a cell
    python benchmarks/scheduler/choices.py --tasks lstm-sgd --links 1gbit
    python benchmarks/scheduler/choices.py --tasks gpt-adamw-2m --links 100mbit --ranks 4

The tasks of `fidelity.py`, two ranks or more. Time to dense's last loss + 1 % is steps times seconds: the steps after
which a candidate first comes within 1 %, in a training as long as dense's or half as long again, and the median seconds
of its steps over the link, all candidates in turns for a minute. Auto's seconds are those of the plan that it chose,
its steps those of the candidate that sends most of that plan's elements; the steps in which it chooses are not counted.

Writes benchmarks/results/choices_curves.json and choices.json, and prints Markdown tables: Auto beside the best, and
how much sooner than dense each candidate is there.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from benchmarks.losses.fidelity import RANKS, STEPS, TASKS, rate
from benchmarks.scheduler.chosen import COLUMNS, DENSE, cells, sooner, steps_to
from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from gradwire.lab.configuration import parse
from gradwire.tuner import CHOOSING_STEPS

LONGER, EVERY = 1.5, 15
MOST_TURNS, WARM, TIMED, LONG_S = 12, 3, 10, 60.0
CANDIDATES = (
    "bf16", "quantized:4", "powersgd:0.3333,bits=4", "powersgd:0.16667,bits=4", "powersgd:4",
    "topk:0.0625,value_bits=4", "topk:0.01", "efsignsgd", "randomk:0.01",
)  # fmt: skip


def main() -> None:
    arguments = arguments_of()
    as_rank(lambda: curves(arguments) if arguments.curves else cell(arguments))
    file, links = ("choices_curves", ["loopback"]) if arguments.curves else ("choices", arguments.links.split(","))
    rows, tasks = known_runs(f"{file}.json", "rows"), arguments.tasks.split(",")
    by_task = {(row["task"], row["ranks"]): row["found"] for row in known_runs("choices_curves.json", "rows")}
    if not arguments.curves and (missing := [task for task in tasks if (task, arguments.ranks) not in by_task]):
        sys.exit(f"there are no curves of {missing[0]} on {arguments.ranks} ranks: measure them with --curves")
    for link, task in product(links, tasks):
        given = ["--tasks", task, "--steps", str(arguments.steps), *(["--curves"] if arguments.curves else [])]
        found = collect(__file__, given, arguments.ranks, link)
        key = {"link": link, "task": task, "ranks": arguments.ranks}
        rows = [row for row in rows if row | key != row]
        rows.append(key | {"found": found})
        save_more(f"{file}.json", "rows", rows=rows)
    if not arguments.curves:
        cases = [(row, by_task[row["task"], row["ranks"]]) for row in rows]
        print(markdown(COLUMNS, [cells(*own) for own in cases]))
        print("\n" + markdown(["", *(f"{row['link']}, {row['task']}" for row in rows)], sooner(cases)))


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(list(TASKS)[:4]))
    parser.add_argument("--links", default="1gbit,100mbit,20mbit")
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--curves", action="store_true")
    return parser.parse_args()


class Training:
    """A fresh model in training; `handle` is what `attach` returned."""

    def __init__(self, task: str, steps: int, attach: Any) -> None:
        self.setting = TASKS[task]
        self.ddp = DistributedDataParallel(self.setting.task.build_model(0))
        self.handle = attach(self.ddp)
        self.optimizer = self.setting.optimizer_of(self.ddp.parameters(), self.setting.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: rate(step, steps))
        self.batches = self.setting.task.batches(dist.get_rank(), dist.get_world_size(), 0)

    def step(self) -> float:
        """One step's seconds."""
        batch, start = next(self.batches), time.perf_counter()
        self.optimizer.zero_grad()
        self.setting.task.training_loss(self.ddp, batch).backward()
        self.optimizer.step()
        seconds = time.perf_counter() - start
        self.schedule.step()
        return seconds

    def loss(self) -> float:
        """The held-out loss, the same on all ranks."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sums = torch.tensor(self.setting.task.sums(self.ddp.module, rank, ranks), dtype=torch.float64)
        dist.all_reduce(sums)
        return self.setting.task.figures(sums.tolist())["loss"]

    def end(self) -> None:
        if self.handle:
            self.handle.detach()


def attached(text: str) -> Any:
    return lambda ddp: None if text == DENSE else gw.attach(ddp, text)


def curves(arguments: argparse.Namespace) -> dict[str, list[tuple[int, float]]]:
    """Steps and losses of each candidate; one that does not reach dense's loss in equal steps trains again, longer."""
    found: dict[str, list[tuple[int, float]]] = {}
    for text in (DENSE, *CANDIDATES):
        found[text] = curve(arguments.tasks, text, arguments.steps)
        if steps_to(found[text], found[DENSE]) == inf:
            found[text] = curve(arguments.tasks, text, round(LONGER * arguments.steps))
    return found


def curve(task: str, text: str, steps: int) -> list[tuple[int, float]]:
    training, points = Training(task, steps, attached(text)), []
    for step in range(1, steps + 1):
        training.step()
        if step % EVERY == 0 or step == steps:
            points.append((step, training.loss()))
    training.end()
    return points


def cell(arguments: argparse.Namespace) -> dict[str, Any]:
    """Auto's choice, the steps that it took, its decisions, and the median seconds of each candidate's steps."""
    task, controller = arguments.tasks, gw.Auto([parse(text).compressor or gw.FP32() for text in CANDIDATES])
    training = Training(task, arguments.steps, lambda ddp: gw.attach(ddp, gw.FP32(), controller=controller))
    taken = 0
    while not controller.chosen and taken <= CHOOSING_STEPS:
        training.step()
        taken += 1
    training.step()
    plan = training.handle.plan
    native = plan.native
    ways = {DENSE: attached(DENSE)} | {text: attached(text) for text in CANDIDATES}
    ways["auto"] = attached(DENSE) if native else lambda ddp: gw.attach(ddp, plan)
    sent = DENSE if native else most_of(plan, training.ddp)
    training.end()
    seconds: dict[str, list[float]] = {text: [] for text in ways}
    for _ in turns():
        for text, attach in ways.items():
            own = Training(task, arguments.steps, attach)
            seconds[text] += [own.step() for _ in range(WARM + TIMED)][WARM:]
            own.end()
    said = [decision.decision for decision in controller.decisions]
    return {"sent": sent, "steps": taken, "said": said, "s": {text: median(own) for text, own in seconds.items()}}


def turns() -> Iterator[None]:
    """Turns until a minute is over, as many on all ranks: short steps vary more, so they get more turns."""
    start = time.perf_counter()
    for _ in range(MOST_TURNS):
        over = torch.tensor(time.perf_counter() - start > LONG_S)
        dist.broadcast(over, 0)
        if over:
            return
        yield


def most_of(plan: gw.Plan, ddp: DistributedDataParallel) -> str:
    """The candidate that sends most elements of the plan."""
    sizes = {name: p.numel() for name, p in ddp.module.named_parameters()}
    texts = {str(parse(text).compressor): text for text in CANDIDATES}
    elements: dict[str, int] = {}
    for group in plan.groups:
        text = texts.get(str(group.compressor), DENSE)
        elements[text] = elements.get(text, 0) + sum(sizes[slot.removeprefix("module.")] for slot in group.slots)
    return max(elements, key=elements.__getitem__)


if __name__ == "__main__":
    main()
