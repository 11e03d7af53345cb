"""The automatic plan beside every fixed configuration, and predicted beside measured steps, in turns in one run.

    python benchmarks/scheduler/auto.py   # loopback, 1gbit, 100mbit; 2 and 4 ranks; four models
    python benchmarks/scheduler/auto.py --links 1gbit --models gpt --ranks 2

In each cell a job first trains under `gw.attach(ddp)` until the plan is found. Then its plan, plain DDP, and each
candidate layer by layer, in 25 MB groups and in one group take turns: a fresh model, a few steps to warm up, then timed
ones. The fastest fixed and the fastest dense configuration then meet Auto's plan once more, in turns, since the least
of a dozen medians is low by chance. The printed figures are those of these finals. "Model" is the profile's prediction
before any plan was tried, "expected" Auto's after it tried some, "off by" the difference between that and the finals.
Figures are medians in ms over all timed steps of rank 0. Writes benchmarks/results/auto.json, in which cells stay that
are not measured again, and prints Markdown tables.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

WARM = 3


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    rows = known_runs("auto.json", "rows")
    for link in arguments.links.split(","):
        for ranks in map(int, arguments.ranks.split(",")):
            for model in arguments.models.split(","):
                cell = {"link": link, "ranks": ranks, "model": model}
                found = collect(__file__, [*sys.argv[1:], "--model", model], ranks, link)
                # a cell that was measured before is replaced
                rows = [row for row in rows if row | cell != row]
                rows.append(cell | found)
                print(line(rows[-1]), flush=True)
                save_more("auto.json", "rows", rows=rows)
    print(f"\n{report(rows)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="loopback,1gbit,100mbit")
    parser.add_argument("--models", default="vgg16,resnet18,lstm,gpt")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--finals", type=int, default=4)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict[str, Any]:
    from gradwire.schedule import timeline

    controller, chosen = found(arguments.model)
    plans: dict[str, Any] = {"auto": chosen, "DDP": None} | fixed(controller.profile)
    said = [decision.decision for decision in controller.decisions]
    all_of_them = in_turns(arguments, controller, plans, arguments.repeats)
    best, dense = rivals(all_of_them["ms"])
    finals = in_turns(arguments, controller, {name: plans[name] for name in ("auto", best, dense)}, arguments.finals)
    by_model = controller.dense_s if chosen.native else timeline(controller.measured, chosen, controller.regime).step_s
    facts = {"said": said, "modelled": 1e3 * by_model}
    return facts | {"best": best, "dense": dense, "finals": finals} | all_of_them


def rivals(ms: dict[str, float]) -> tuple[str, str]:
    """The names of the fastest fixed configuration and of the fastest dense one, as rank 0 saw them."""
    import torch
    import torch.distributed as dist

    names = [name for name in ms if name != "auto"]
    dense = [name for name in names if name == "DDP" or "FP32" in name or "BF16" in name]
    picks = torch.tensor([names.index(min(own, key=ms.__getitem__)) for own in (names, dense)])
    dist.broadcast(picks, 0)
    best, best_dense = picks.tolist()
    return names[best], names[best_dense]


def in_turns(arguments: argparse.Namespace, controller: Any, plans: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Medians, spreads and predictions of the steps with each plan; None is plain DDP. Of "auto" the prediction is the
    controller's."""
    from gradwire.schedule import timeline

    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(repeats):
        for name, plan in plans.items():
            seconds[name] += timed(arguments.model, plan, arguments.steps)
    predicted = {
        name: 1e3 * timeline(controller.profile, plan, controller.regime).step_s
        for name, plan in plans.items()
        if plan and not plan.native
    }
    predicted["auto"] = 1e3 * controller.expected_s
    measured = {name: 1e3 * median(own) for name, own in seconds.items()}
    spread = {name: 1e3 * (max(own) - min(own)) for name, own in seconds.items()}
    return {"ms": measured, "spread": spread, "predicted": predicted}


def found(model: str, candidates: Sequence[Any] = (), objective: Any = "progress") -> tuple[Any, Any]:
    """The controller and the plan of a job under `gw.Auto(candidates, objective=...)`."""
    import gradwire as gw
    from gradwire.tuner import CHOOSING_STEPS

    controller = gw.Auto(candidates, objective=objective)
    step = Training(model, lambda ddp: gw.attach(ddp, gw.FP32(), controller=controller))
    for _ in range(CHOOSING_STEPS + 1):
        step.run()
        if controller.chosen:
            step.run()
            break
    assert controller.chosen, "Auto took more than CHOOSING_STEPS steps"
    plan = step.handle.plan
    step.handle.detach()
    return controller, plan


def fixed(profile: Any) -> dict[str, Any]:
    """Each candidate layer by layer, in 25 MB groups and in one group."""
    from gradwire.schedule import Worker, baselines

    problem, regime = profile.problem(), Worker()
    rules = {"layer-wise": baselines.layer_wise, "25 MB": baselines.buckets, "one group": baselines.one_group}
    plans = {
        f"{candidate.way.compressor} {candidate.way.communicator} {name}": profile.plan(
            rule(problem, regime, option).groups
        )
        for option, candidate in enumerate(profile.candidates)
        for name, rule in rules.items()
    }
    return {name: plan for i, (name, plan) in enumerate(plans.items()) if plan not in list(plans.values())[:i]}


def timed(model: str, plan: Any, steps: int) -> list[float]:
    """Seconds of each step, after a few to warm up."""
    import gradwire as gw

    step = Training(model, lambda ddp: gw.attach(ddp, plan) if plan else None)
    for _ in range(WARM):
        step.run()
    seconds = [step.run() for _ in range(steps)]
    if step.handle:
        step.handle.detach()
    return seconds


class Training:
    """A fresh model in training."""

    def __init__(self, model: str, attach: Any) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from gradwire.lab.workloads import Synthetic

        self.task = Synthetic(model=model)
        self.ddp = DistributedDataParallel(self.task.build_model(seed=0))
        self.batches = self.task.batches(dist.get_rank(), dist.get_world_size(), seed=0)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)
        self.handle = attach(self.ddp)

    def run(self) -> float:
        """One step's seconds."""
        inputs, targets = next(self.batches)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.task.loss(self.ddp(inputs), targets).backward()
        self.optimizer.step()
        return time.perf_counter() - start


def best_of(row: dict[str, Any]) -> str:
    """The fixed configuration that was fastest in the finals."""
    return min((row["best"], row["dense"]), key=row["finals"]["ms"].__getitem__)


def line(row: dict[str, Any]) -> str:
    ms, best = row["finals"]["ms"], best_of(row)
    return (
        f"{row['link']} x{row['ranks']} {row['model']}: auto {ms['auto']:.0f} ms (predicted "
        f"{row['predicted']['auto']:.0f}), best fixed {ms[best]:.0f} ms ({best}), best dense "
        f"{ms[row['dense']]:.0f} ms ({row['dense']}); {row['said'][-1]}"
    )


def report(rows: list[dict[str, Any]]) -> str:
    columns = (
        "link", "ranks", "network", "auto", "model", "expected", "off by", "best fixed", "", "auto / best",
        "best dense", "auto / dense",
    )  # fmt: skip
    cells: list[list[str]] = []
    shares: dict[str, list[float]] = {"best": [], "dense": [], "expected": [], "model": []}
    for row in rows:
        ms, expected, modelled = row["finals"]["ms"], row["predicted"]["auto"], row["modelled"]
        auto, dense = ms["auto"], ms[row["dense"]]
        name = best_of(row)
        best = ms[name]
        numbers = auto / best, auto / dense, expected / auto, modelled / auto
        for own, number in zip(shares.values(), numbers, strict=True):
            own.append(number)
        cells.append([
            row["link"], str(row["ranks"]), row["model"], f"{auto:.0f}", f"{modelled:.0f}", f"{expected:.0f}",
            f"{expected / auto - 1:+.0%}", f"{best:.0f}", name, f"{auto / best:.2f}", f"{dense:.0f}",
            f"{auto / dense:.2f}",
        ])  # fmt: skip
    said = (
        f"Of {len(rows)}: {sum(s <= 1.03 for s in shares['best'])} at most 3 % slower than the best fixed "
        f"configuration, {sum(s <= 1.02 for s in shares['dense'])} at most 2 % slower than the best dense one; "
        f"expected within 10 % in {sum(abs(s - 1) <= 0.1 for s in shares['expected'])}, modelled in "
        f"{sum(abs(s - 1) <= 0.1 for s in shares['model'])}, medians off by "
        f"{median(abs(s - 1) for s in shares['expected']):.0%} and {median(abs(s - 1) for s in shares['model']):.0%}."
    )
    return f"{markdown(columns, cells)}\n\n{said}"


if __name__ == "__main__":
    main()
