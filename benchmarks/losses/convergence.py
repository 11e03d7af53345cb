"""Loss after equal steps: all-dimension top-k against top-k at equal wire bytes, and every compressor beside dense.

    python benchmarks/losses/convergence.py                          # all of it
    python benchmarks/losses/convergence.py --tasks text --seeds 0

Text is the byte-level language model (LSTM) on the standard library's sources, images are Fashion-MNIST (three linear
layers, all 10,000 test images held out). Two ranks over loopback: losses do not depend on the link. SGD with
momentum 0.9 and a learning rate that falls to 0 along a cosine, the same for all unless the table names another.
Gradients are not clipped: error feedback takes all of a decoded gradient for applied.

Writes benchmarks/results/convergence.json after every run and prints Markdown tables. An interrupted run
goes on where it ended; remove the result after a change of this file.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

sys.path.append(str(Path(__file__).parents[2]))

import torch
from torch import nn

import gradwire as gw
from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from gradwire.compressors import Codec, Compressor
from gradwire.lab.workloads import FashionMnist, LanguageModel, Task
from gradwire.memories import Memory
from gradwire.plans import uniform
from gradwire.slots import Layout, Slot

RANKS = 2
FILE = "convergence.json"
RIVALS = ("TopK", "AllDimensionTopK", "Interleaved")
SLOWER = " at a quarter of the rate"
DENSITIES = {"1 %": 0.01, "lowest": 1e-9}
"""Densities for AllDimensionTopK; "lowest" is one element of each slice, its least."""

EQUAL = (
    "at equal bytes", "compressed bytes per step", "held-out loss", "accuracy", "training loss at the end",
    "held-out against TopK, by seed", "training against TopK",
)  # fmt: skip
ALL = ("configuration", "bytes per step, all", "held-out loss", "seeds", "against dense", "within 2 %", "of its own")
"""The columns of the tables."""


@dataclass(frozen=True, kw_only=True)
class Clothes(FashionMnist):
    """Fashion-MNIST with a network that trains in seconds on two busy hardware threads."""

    sample: ClassVar[int] = 10_000

    def _module(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """How one task is trained; `sign_lr` is for compressors that send only signs, as their docstrings ask."""

    task: Task
    steps: int
    lr: float
    sign_lr: float
    threshold: float

    @property
    def slots(self) -> list[Slot]:
        """The model's parameters in about the order of their gradients."""
        return [Slot.of(name, p) for name, p in self.task.build_model(0).named_parameters()][::-1]


@dataclass(frozen=True)
class Run:
    """One configuration; an `lr` of None is the task's."""

    name: str
    compressor: Compressor | None
    memory: Memory | None = None
    each: bool = False
    lr: float | None = None
    momentum: float = 0.9
    note: str = ""

    def plan(self, slots: list[Slot]) -> gw.Plan:
        """The uniform plan; with `each`, every weight is a group of its own, as in ADTopk's code."""
        assert self.compressor
        plan = uniform(slots, self.compressor, self.memory)
        if not self.each:
            return plan
        small = [group for group in plan.groups if isinstance(group.compressor, gw.FP32)]
        large = [replace(group, slots=(name,)) for group in plan.groups if group not in small for name in group.slots]
        return gw.Plan((*large, *small))


def settings() -> dict[str, Setting]:
    text = LanguageModel(model="lstm", width=64, layers=1, context=24, batch=4)
    return {
        "text": Setting(text, 1600, 1.0, 0.003, 0.01),
        "images": Setting(Clothes(batch=16), 2000, 0.02, 0.001, 0.01),
    }


def main() -> None:
    arguments = parse()
    as_rank(lambda: job(arguments))
    for part, seed, task in product(*(each.split(",") for each in (arguments.parts, arguments.seeds, arguments.tasks))):
        if missing(part, task, int(seed)):
            collect(__file__, ["--parts", part, "--seeds", seed, "--tasks", task], RANKS, "loopback")
    print("\n\n".join(tables(task, known_runs(FILE)) for task in settings()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="rivals,rest,each,slower", help="in this order")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", default="text,images")
    return parser.parse_args()


def missing(part: str, task: str, seed: int) -> list[Run]:
    """The runs of a part that the results file lacks."""
    setting = settings()[task]
    done = {run["name"] for run in known_runs(FILE) if (run["task"], run["seed"]) == (task, seed)}
    beside = rivals(setting.slots)
    parts = {
        "rivals": [run for run in beside if not run.each], "rest": rest(setting),
        "each": [run for run in beside if run.each], "slower": slower(setting),
    }  # fmt: skip
    return [run for run in parts[part] if run.name not in done]


def job(arguments: argparse.Namespace) -> list[dict]:
    """Trains the missing runs of one part, task and seed, and writes the results after each."""
    import torch.distributed as dist

    task, seed = arguments.tasks, int(arguments.seeds)
    results, runs = known_runs(FILE), missing(arguments.parts, task, seed)
    for run in runs:
        found = {"task": task, "seed": seed} | train(run, settings()[task], seed)
        results.append(found)
        if dist.get_rank() == 0:
            print(f"{task} {seed} {run.name}: {found['loss']:.4f} in {found['wall_s']:.0f} s", end="", flush=True)
            save_more(FILE, runs=results)
    return results


def rivals(slots: list[Slot]) -> list[Run]:
    """Dense, and at each density the configurations that are compared at equal wire bytes."""
    runs = [Run("dense", None)]
    for label, density in DENSITIES.items():
        by_slice = gw.AllDimensionTopK(density)
        rows = Run(f"AllDimensionTopK {label}", by_slice)
        size = payload_bytes(rows, slots)
        whole = gw.TopK(matched(size, slots))
        rival = [
            Run(f"TopK {label}", whole), rows, Run(f"Interleaved {label}", gw.Interleaved(by_slice, whole)),
            Run(f"TopK, each tensor {label}", gw.TopK(matched(size, slots, each=True)), each=True),
        ]  # fmt: skip
        # within 4 %: each tensor's entries are padded by themselves
        assert all(abs(payload_bytes(run, slots) / size - 1) < 0.04 for run in rival)
        runs += rival
    return runs


def slower(setting: Setting) -> list[Run]:
    """Runs at a quarter of the rate: if rows sent in turn lose less there, their delay is the reason."""
    dense, whole, rows, *_ = rivals(setting.slots)
    return [replace(run, name=run.name + SLOWER, lr=setting.lr / 4) for run in (dense, whole, rows)]


def matched(size: float, slots: list[Slot], each: bool = False) -> float:
    """The ratio at which TopK sends `size` bytes a step, as nearly as possible."""
    low, high = 0.0, 1.0
    for _ in range(40):
        ratio = (low + high) / 2
        less = payload_bytes(Run("", gw.TopK(ratio), each=each), slots) < size
        low, high = (ratio, high) if less else (low, ratio)
    return high


def payload_bytes(run: Run, slots: list[Slot]) -> float:
    """Bytes per step and rank of the groups that are compressed, the mean of two steps."""
    by_name = {slot.name: slot for slot in slots}
    total = 0
    for group in run.plan(slots).groups:
        layout = Layout(tuple(by_name[name] for name in group.slots))
        if isinstance(group.compressor, Codec) and not isinstance(group.compressor, gw.FP32):
            total += sum(group.communicator.wire(group.compressor, layout, RANKS, step).wire_bytes for step in (0, 1))
    return total / 2


def rest(setting: Setting) -> list[Run]:
    """Every compressor but those that `rivals` has, with its default pairing and parameters."""
    own = {"lr": setting.sign_lr, "momentum": 0.0, "note": f"plain SGD at lr {setting.sign_lr}, as for Adam"}
    correction = "momentum 0.9 in the memory, as its paper has it, hence plain SGD"
    return [
        Run("FP16", gw.FP16()), Run("BF16", gw.BF16()), Run("QSGD", gw.QSGD()), Run("TernGrad", gw.TernGrad()),
        Run("EFSignSGD", gw.EFSignSGD()), Run("OneBit", gw.OneBit()), Run("PowerSGD r4", gw.PowerSGD()),
        Run("ACPSGD r4", gw.ACPSGD()), Run("RandomK 1 %", gw.RandomK()), Run("GaussianK 1 %", gw.GaussianK()),
        Run("RedSync 1 %", gw.RedSync()), Run("SIDCo 1 %", gw.SIDCo()),
        Run("ReusedThreshold 1 %", gw.ReusedThreshold()), Run("MultiLevel 10 % and 1 %", gw.MultiLevel()),
        Run("HardThreshold, 1 % at most", gw.HardThreshold(setting.threshold), note=f"threshold {setting.threshold}"),
        Run("DGC 1 %", gw.DGC(), gw.DGCMemory(), momentum=0.0, note=correction),
        Run("SignSGD", gw.SignSGD(), **own), Run("Signum", gw.Signum(), **own),
    ]  # fmt: skip


def train(run: Run, setting: Setting, seed: int) -> dict:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    task, steps, slots = setting.task, setting.steps, setting.slots
    ddp = DDP(task.build_model(seed))
    handle = gw.attach(ddp, run.plan(slots), seed=seed) if run.compressor else None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=run.lr or setting.lr, momentum=run.momentum)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = task.batches(dist.get_rank(), dist.get_world_size(), seed)
    losses = torch.zeros(steps)
    start = time.perf_counter()
    for step in range(steps):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        loss = task.loss(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[step] = loss.detach()
    wall_s = time.perf_counter() - start
    sent = handle.stats().wire_bytes / steps if handle else 4 * sum(slot.numel for slot in slots)
    if handle:
        handle.detach()
    dist.all_reduce(losses)
    return {
        "name": run.name, "note": run.note, "sent": sent,
        "compressed": payload_bytes(run, slots) if run.compressor else sent, "wall_s": wall_s,
        "curve": (losses / dist.get_world_size()).view(40, -1).mean(1).tolist(), **task.evaluate(ddp.module),
    }  # fmt: skip


def tables(task: str, results: list[dict]) -> str:
    """Two tables: the rivals of each density, and everything beside dense."""
    mine = [run | {"last": statistics.mean(run["curve"][-4:])} for run in results if run["task"] == task]
    setting = settings()[task]
    about = (
        f"{task}: {sum(slot.numel for slot in setting.slots)} parameters, {setting.steps} steps of {RANKS} ranks, "
        f"lr {setting.lr}. Median (least to most) over the seeds; training losses of the last tenth of the steps"
    )
    return "\n\n".join([about, markdown(EQUAL, at_equal_bytes(mine)), markdown(ALL, beside_dense(mine))])


def at_equal_bytes(mine: list[dict]) -> Iterator[list[str]]:
    """A line for each rival, density by density, beside TopK."""
    names = dict.fromkeys(run["name"] for run in mine)
    for label in DENSITIES:
        rival = seeds_of(mine, f"TopK {label}")
        for name in names:
            if name.endswith(f" {label}") and name.startswith(RIVALS):
                own = seeds_of(mine, name)
                yield [
                    name, f"{own[0]['compressed']:.0f}", spread(own, "loss", ".4f"), spread(own, "accuracy", ".1%"),
                    spread(own, "last", ".4f"), listed(changes(own, rival)), listed(changes(own, rival, "last")),
                ]  # fmt: skip


def beside_dense(mine: list[dict]) -> Iterator[list[str]]:
    """A line for each configuration, from the lowest loss on."""
    names = dict.fromkeys(run["name"] for run in mine)
    for own in sorted((seeds_of(mine, name) for name in names), key=lambda runs: middle(runs, "loss")):
        name = own[0]["name"]
        worse = statistics.median(changes(own, seeds_of(mine, "dense" + SLOWER if name.endswith(SLOWER) else "dense")))
        yield [
            name, f"{own[0]['sent']:.0f}", spread(own, "loss", ".4f"), str(len(own)), f"{worse:+.1%}",
            "yes" if worse <= 0.02 else "no", own[0]["note"],
        ]  # fmt: skip


def seeds_of(runs: list[dict], name: str) -> list[dict]:
    """The runs of one configuration, by seed."""
    return sorted((run for run in runs if run["name"] == name), key=lambda run: run["seed"])


def changes(runs: list[dict], others: list[dict], key: str = "loss") -> list[float]:
    """The relative difference of each loss to that of the other configuration's run with the same seed."""
    of_seed = {other["seed"]: other[key] for other in others}
    return [run[key] / of_seed[run["seed"]] - 1 for run in runs if run["seed"] in of_seed]


def listed(changes: list[float]) -> str:
    return ", ".join(format(change, "+.1%") for change in changes)


def middle(runs: list[dict], key: str) -> float:
    values = [run[key] for run in runs]
    return math.inf if any(map(math.isnan, values)) else statistics.median(values)


def spread(runs: list[dict], key: str, form: str) -> str:
    values = [run[key] for run in runs]
    ends = f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{ends}"


if __name__ == "__main__":
    main()
