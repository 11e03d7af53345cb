"""Is a played cluster true? Its steps beside those of ranks on emulated hosts.

    python benchmarks/scheduler/played_beside_real.py                                  # 2 and 4 ranks, three links
    python benchmarks/scheduler/played_beside_real.py --ranks 2 --links 1gbit --models tiny-vgg16 --repeats 1

In every cell (model, ranks, link) ranks are processes over gloo, each in a network namespace of its own behind a shaped
link. They take some steps among each other, then some on a card that is played, in turns, so that both kinds share the
cores alike and a slow minute hits both. Figures are medians over all timed steps of rank 0. Beside them stands what a
curve says of this link that was measured where others were asked for. Writes benchmarks/results/played_beside_real.json
with all ratios to the real steps.
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import save

CONFIGURATIONS = (
    "dense torch-fp16 torch-powersgd:4 fp32 bf16 quantized:8 quantized:4 topk:0.01 powersgd:4 acpsgd:4 efsignsgd"
)
WITHIN = 0.10


def main() -> None:
    arguments = parse()
    rows: list[dict[str, Any]] = []
    for model in arguments.models.split(","):
        for ranks in map(int, arguments.ranks.split(",")):
            cells = {link: cell(model, ranks, link, arguments) for link in arguments.links.split(",")}
            fresh = [row for link in cells for row in compared(model, ranks, link, cells, arguments.latency_us)]
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


Cell = dict[str, tuple[dict[str, list[float]], Any]]
"""By configuration: milliseconds of the real and the played steps, and a curve."""


def cell(model: str, ranks: int, link: str, arguments: argparse.Namespace) -> Cell:
    """The steps of all configurations."""
    from benchmarks.scheduler.played_beside_real_rank import beside
    from gradwire.lab.curve import StepCurve
    from gradwire.lab.experiments.bench_setup import Setup, TimingOptions
    from gradwire.lab.launch.runner import runner
    from gradwire.lab.play_spec import PlaySpec

    there = PlaySpec.read(f"{ranks}@{link}", latency_us=arguments.latency_us)
    timing = TimingOptions(arguments.steps, arguments.repeats)
    spec = Setup(model=model, ranks=ranks, play=there).spec(arguments.configurations.split(), timing)
    lines: list[dict[str, Any]] = []
    with runner(Setup(model=model, ranks=ranks, link=link).cluster("cpu")) as runs, TemporaryDirectory() as folder:
        runs.run(beside, spec, Path(folder, "lines.jsonl"), lines.append)
    return {line["configuration"]: (line["step_ms"], StepCurve.from_line(line["curve"])) for line in lines}


def compared(model: str, ranks: int, link: str, cells: dict[str, Cell], latency_us: float) -> list[dict[str, Any]]:
    """A row for each configuration: its steps, and the ratios of the played ones and of the curves to the real ones."""
    from gradwire.lab.play_spec import PlaySpec

    network = PlaySpec.read(f"{ranks}@{link}", latency_us=latency_us).cluster.network
    rows: list[dict[str, Any]] = []
    for name, (step_ms, _) in cells[link].items():
        # the curves that were measured where other links were asked for
        by_curve = [1e3 * own[name][1].at(*network) for other, own in cells.items() if other != link]
        found = {"real_ms": step_ms["real"], "played_ms": step_ms["played"]}
        found |= {"curve_ms": by_curve} if by_curve else {}
        figures = {what: median(numbers) for what, numbers in found.items()}
        ratios = {what.removesuffix("_ms"): figure / figures["real_ms"] for what, figure in figures.items()}
        rows.append({"model": model, "ranks": ranks, "link": link, "configuration": name} | figures | ratios)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The shares of cells in which the played steps, and those of the curves, are within 10 % of the real ones."""
    shares: dict[str, float] = {}
    for kind in ("played", "curve"):
        ratios = [row[kind] for row in rows if kind in row and row["configuration"] != "nocomm"]
        if ratios:
            shares[f"{kind}_within"] = sum(abs(ratio - 1) <= WITHIN for ratio in ratios) / len(ratios)
            shares[f"{kind}_median"] = median(ratios)
    return shares


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    where = f"| {row['model']} | {row['ranks']} | {row['link']} | {row['configuration']} "
    figures = f"| {row['real_ms']:.0f} | {row['played_ms']:.0f} {row['played']:.2f}x "
    return f"{where}{figures}| {row['curve']:.2f}x |" if "curve" in row else f"{where}{figures}|"


if __name__ == "__main__":
    main()
