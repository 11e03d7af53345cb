"""Cupcake's ablation, measured here: does it pay to search for the groups?

    python benchmarks/scheduler/ablation.py   # DGC and EFSignSGD, four models, 2 ranks, 1 Gbit/s

The plan of `gw.Auto([compressor], objective="step")` and that of its search alone, beside the default of
`gw.attach(ddp, compressor)`, layer by layer, one group, 25 MB buckets, the best of 40 bucket sizes and the best of 32
even splits (best as predicted from the same profile); one compressor for all weights, vectors dense. The plans take
turns: a fresh model, a few steps to warm up, then timed ones. Figures are medians in ms over all timed steps of rank 0.
Writes benchmarks/results/ablation.json and prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.scheduler.auto import WARM, Training, found, in_turns
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

COMPRESSORS = ("DGC", "EFSignSGD")
RULES = ("auto", "default", "searched", "layer-wise", "one group", "25 MB", "best bucket", "best even split")


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    rows: list[dict[str, Any]] = []
    for model in arguments.models.split(","):
        for compressor in COMPRESSORS:
            own = [*sys.argv[1:], "--model", model, "--compressor", compressor]
            cell = collect(__file__, own, arguments.ranks, arguments.link)
            rows.append(
                {"link": arguments.link, "ranks": arguments.ranks, "model": model, "compressor": compressor} | cell
            )
            print(*cells(rows[-1]), sep=", ", flush=True)
            save(arguments.save, rows=rows)
    columns = "model", "compressor", *(f"{rule} (groups)" for rule in RULES)
    print(f"\n{markdown(columns, map(cells, rows))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--models", default="vgg16,resnet18,lstm,gpt")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", default="ablation.json")
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    parser.add_argument("--compressor", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict[str, Any]:
    import gradwire as gw
    from benchmarks.scheduler import peers
    from gradwire.schedule import baselines

    compressor = getattr(gw, arguments.compressor)()
    controller, chosen = found(arguments.model, [compressor], "step")
    profile, regime = controller.profile, controller.regime
    problem = profile.problem()
    option = [candidate.way.compressor for candidate in profile.candidates].index(compressor)
    others = [
        controller.found,
        baselines.layer_wise(problem, regime, option),
        baselines.one_group(problem, regime, option),
        baselines.buckets(problem, regime, option),
        baselines.best_buckets(problem, regime, option),
        peers.best_even_split(problem, regime, option),
    ]
    own = [chosen, default(arguments.model, compressor)]
    plans = dict(zip(RULES, [*own, *(profile.plan(each.groups) for each in others)], strict=True))
    groups = {name: len(plan.groups) for name, plan in plans.items()}
    return {"groups": groups} | in_turns(arguments, controller, plans, arguments.repeats)


def default(model: str, compressor: Any) -> Any:
    """The plan of `gw.attach(ddp, compressor)` once its groups have the order in which gradients become ready."""
    import gradwire as gw

    step = Training(model, lambda ddp: gw.attach(ddp, compressor))
    for _ in range(WARM):
        step.run()
    plan = step.handle.plan
    step.handle.detach()
    return plan


def cells(row: dict[str, Any]) -> list[str]:
    """Each rule's ms, its ratio to the automatic plan's, and its groups."""
    best = row["ms"]["auto"]
    ratios = [f"{row['ms'][rule]:.0f} {row['ms'][rule] / best:.2f}x ({row['groups'][rule]})" for rule in RULES]
    return [row["model"], row["compressor"], *ratios]


if __name__ == "__main__":
    main()
