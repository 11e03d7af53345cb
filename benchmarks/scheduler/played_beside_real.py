"""Is a played cluster true? Its steps beside those of ranks on emulated hosts.

    python benchmarks/scheduler/played_beside_real.py                                  # 2 and 4 ranks, three links
    python benchmarks/scheduler/played_beside_real.py --ranks 2 --links 1gbit --models tiny-vgg16 --repeats 1

In every cell (model, ranks, link) ranks are processes over gloo, each in a network namespace of its own behind a shaped
link. They take some real steps, then some on a played card, in turns, so that other load on the machine slows both
equally. Figures are medians over all timed steps of rank 0. The last column is the step as `StepCurve` predicts it for
the link, from one curve of each configuration that is measured beside the first link. `resting.py` has models for
`--models` that leave the processor to the network, as models on a GPU do.
Writes benchmarks/results/played_beside_real.json with all ratios to the real steps.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.scheduler.played_beside_real_rank import BesideSpec, beside
from benchmarks.shared.provenance import save
from gradwire.lab.curve import StepCurve
from gradwire.lab.experiments.bench_setup import Setup, TimingOptions
from gradwire.lab.launch.runner import runner
from gradwire.lab.names import NOCOMM
from gradwire.lab.play_spec import PlaySpec

CONFIGURATIONS = (
    "dense torch-fp16 torch-powersgd:4 fp32 bf16 quantized:8 quantized:4 topk:0.01 powersgd:4 acpsgd:4 efsignsgd"
)
WITHIN = 0.10


def main() -> None:
    arguments = parse()
    rows: list[dict[str, Any]] = []
    for model in arguments.models.split(","):
        for ranks in map(int, arguments.ranks.split(",")):
            curves: dict[str, Any] = {}
            for link in arguments.links.split(","):
                found = cell(model, ranks, link, not curves, arguments)
                curves = curves or {name: StepCurve.from_line(each["curve"]) for name, each in found.items()}
                fresh = compared(model, ranks, link, found, curves, arguments.latency_us)
                rows += fresh
                save(arguments.save, latency_us=arguments.latency_us, within=WITHIN, **summary(rows), rows=rows)
                print("\n".join(map(line, fresh)), flush=True)
    print(summary(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny-vgg16,tiny-gpt")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--links", default="100mbit,1gbit,10gbit")
    parser.add_argument("--configurations", default=CONFIGURATIONS)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--latency-us", type=float, default=50.0)
    parser.add_argument("--save", default="played_beside_real.json")
    return parser.parse_args()


def cell(model: str, ranks: int, link: str, curved: bool, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By configuration: milliseconds of the real and the played steps and, if they are to be `curved`, their curve."""
    there = PlaySpec.read(f"{ranks}@{link}", latency_us=arguments.latency_us)
    timing = TimingOptions(arguments.steps, arguments.repeats)
    spec = Setup(model=model, ranks=ranks, play=there).spec(arguments.configurations.split(), timing)
    lines: list[dict[str, Any]] = []
    with runner(Setup(model=model, ranks=ranks, link=link).cluster("cpu")) as runs, TemporaryDirectory() as folder:
        runs.run(beside, BesideSpec(**vars(spec), curved=curved), Path(folder, "lines.jsonl"), lines.append)
    return {line["configuration"]: line for line in lines}


def compared(
    model: str, ranks: int, link: str, found: dict[str, dict[str, Any]], curves: dict[str, Any], latency_us: float
) -> list[dict[str, Any]]:
    """A row for each configuration: its steps, and the ratios of the played ones and of the curve to the real ones."""
    network = PlaySpec.read(f"{ranks}@{link}", latency_us=latency_us).cluster.network
    rows: list[dict[str, Any]] = []
    for name, each in found.items():
        figures = {f"{kind}_ms": median(steps) for kind, steps in each["step_ms"].items()}
        figures["curve_ms"] = 1e3 * curves[name].at(*network)
        ratios = {kind: figures[f"{kind}_ms"] / figures["real_ms"] for kind in ("played", "curve")}
        rows.append({"model": model, "ranks": ranks, "link": link, "configuration": name} | figures | ratios)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The shares of cells in which the played steps, and those of the curves, are within 10 % of the real ones."""
    shares: dict[str, float] = {}
    for kind in ("played", "curve"):
        ratios = [row[kind] for row in rows if row["configuration"] != NOCOMM]
        shares[f"{kind}_within"] = sum(abs(ratio - 1) <= WITHIN for ratio in ratios) / len(ratios)
        shares[f"{kind}_median"] = median(ratios)
    return shares


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    where = f"| {row['model']} | {row['ranks']} | {row['link']} | {row['configuration']} "
    figures = f"| {row['real_ms']:.0f} | {row['played_ms']:.0f} {row['played']:.2f}x "
    return f"{where}{figures}| {row['curve_ms']:.0f} {row['curve']:.2f}x |"


if __name__ == "__main__":
    main()
