"""Trainings to convergence: dense and five compressors on Fashion-MNIST and on a language model, three seeds.

    python benchmarks/losses/converged.py                                     # an hour on two cores
    python benchmarks/losses/converged.py --tasks lm --seeds 0 --epochs 1     # a trial: one epoch of each configuration

Fashion-MNIST (Debian's dataset-fashion-mnist) with LeNet; the byte-level language model on a million bytes of the
standard library's sources with a two-layer LSTM, gradients clipped to norm 1. SGD with momentum 0.9 and a rate that
falls to 0 along a cosine, the same for all. After each epoch the whole held-out set is evaluated. Two ranks; losses do
not depend on the link.

Writes benchmarks/results/converged.json after every seed, and prints a Markdown table; `make benchmarks` draws it. An
interrupted run goes on from its last epoch; remove benchmarks/results/.converged after a change of this file.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from statistics import mean

sys.path.append(str(Path(__file__).parents[2]))

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.shared.provenance import RESULTS, save
from benchmarks.shared.tables import markdown
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.experiments.resumable import METRICS, records_kept
from gradwire.lab.experiments.training import Training
from gradwire.lab.jobs.train_job import train
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.runner import runner
from gradwire.lab.network.link import LOOPBACK, link_of
from gradwire.lab.results import LARGER_IS_BETTER, shown
from gradwire.report.pictures import look

CONFIGURATIONS = ("dense", "qsgd", "topk:0.01", "efsignsgd", "powersgd:4", "acpsgd:4")
TRAININGS = {
    "fashion-mnist": Training(
        task="fashion-mnist",
        options=("model=lenet", "batch=64"),
        recipe=Recipe(epochs=8, lr=0.05, weight_decay=5e-4, schedule="cosine"),
        metric="accuracy",
    ),
    "lm": Training(
        task="lm",
        options=("model=lstm", "width=128", "batch=16", "max_bytes=1000000"),
        recipe=Recipe(epochs=4, optimizer="sgd", lr=1.0, schedule="cosine", clip=1.0),
        metric="loss",
    ),
}


def main() -> None:
    arguments = parse()
    rows: list[dict] = []
    for seed, task in product(arguments.seeds.split(","), arguments.tasks.split(",")):
        rows += trained(task, int(seed), arguments)
        save("converged.json", link=arguments.link, hosts=arguments.hosts, rows=rows)
    print(f"\n{table(rows)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TRAININGS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--link", default=LOOPBACK)
    return parser.parse_args()


def trained(task: str, seed: int, arguments: argparse.Namespace) -> list[dict]:
    """One row for each configuration."""
    training = TRAININGS[task].altered(configurations=CONFIGURATIONS, epochs=arguments.epochs)
    comparison = training.comparison(arguments.hosts, seed, checkpoint_every=1)
    rows = []
    with runner(LabCluster(arguments.hosts, link_of(arguments.link))) as ranks:
        for configuration, spec in comparison.specs(RESULTS / ".converged" / f"{task}-{seed}"):
            home = Path(spec.home)
            home.mkdir(parents=True, exist_ok=True)
            records_kept(home)
            ranks.run(train, spec, home / METRICS, lambda line: None)
            lines = [json.loads(line) for line in (home / METRICS).read_text().splitlines()]
            curve = [
                (line["step"], line["wall_s"], line["held_out"][training.metric]) for line in lines if line["held_out"]
            ]
            row = {"task": task, "metric": training.metric, "seed": seed, "configuration": configuration.text}
            rows.append(
                row | {"curve": curve, "bytes": lines[-1]["wire_bytes"], "dense_bytes": lines[-1]["dense_bytes"]}
            )
            print(f"{task}, seed {seed}, {configuration.text}: {training.metric} {curve[-1][2]:.4f}", flush=True)
    return rows


def table(rows: list[dict]) -> str:
    cells: list[list[str]] = []
    for task, name in dict.fromkeys((row["task"], row["configuration"]) for row in rows):
        own = {row["seed"]: row for row in rows if (row["task"], row["configuration"]) == (task, name)}
        dense = {row["seed"]: row for row in rows if (row["task"], row["configuration"]) == (task, "dense")}
        last = {seed: row["curve"][-1][2] for seed, row in own.items()}
        against = mean(last[seed] - dense[seed]["curve"][-1][2] for seed in own)
        fewer = mean(row["dense_bytes"] / row["bytes"] for row in own.values())
        figures = ", ".join(f"{figure:.4f}" for figure in last.values())
        cells.append([task, name, figures, f"{against:+.4f}", f"{fewer:.1f}x"])
    return markdown(("task", "configuration", "last, by seed", "against dense", "fewer bytes"), cells)


def picture(rows: list[dict]) -> Figure:
    """The held-out metric against epochs: the mean over the seeds, and from the least to the largest."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    drawn = Figure(figsize=(6 * len(tasks), 4.6), layout="constrained")
    for panel, task in zip(drawn.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for index, name in enumerate(CONFIGURATIONS):
            own = [row for row in rows if (row["task"], row["configuration"]) == (task, name)]
            figures = list(zip(*([point[2] for point in row["curve"]] for row in own), strict=True))
            epochs = range(1, len(figures) + 1)
            style = look(index)
            panel.plot(epochs, list(map(mean, figures)), label=name, markersize=3, **style)
            panel.fill_between(
                epochs, list(map(min, figures)), list(map(max, figures)), alpha=0.15, color=style["color"]
            )
        metric = own[0]["metric"]
        panel.set(title=task, xlabel="epochs", ylabel=shown(metric))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.legend(loc="lower right" if metric in LARGER_IS_BETTER else "upper right")
    return drawn


if __name__ == "__main__":
    main()
