"""DeMo and Dion, whose exchanges are updates, beside AdamW and Muon on whole gradients: held-out losses. No timing.

    python benchmarks/losses/updates.py                                  # 0.74 M parameters, two cores
    python benchmarks/losses/updates.py --only dion --rates 1 --seeds 1

A GPT on the Python files that are installed, as byte-level pairs; 4 ranks of 4 windows of 128 tokens. Each optimizer is
trained at every rate with one seed, then at its best rate with all seeds. Rates are multiples of AdamW's 1e-3: steps by
signs take 0.3 of that, matrices under Muon and Dion 20 times that, all rise in the first 100 steps and fall along a
cosine. Ranks are threads with the codecs, memories and collectives of any job. Writes benchmarks/results/updates.json
after each training, skips trainings that it has, and prints a Markdown table.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.tables import markdown, span

SAVED = "updates.json"
BASE = 1e-3
RATES = 1.0, 2.0, 4.0, 8.0


class Run(NamedTuple):
    """A training: the optimizer, the multiple of its rate, and the seed of weights and batches."""

    name: str
    rate: float
    seed: int


def ways() -> dict[str, Any]:
    import gradwire as gw
    from benchmarks.losses.size.ways import WAYS, Way, matrices_apart, muon

    quarter = Way("Dion 1/4", gw.Dion(1 / 4, mu=0.95), WAYS["dion"].options, matrices_apart)
    return {
        "adamw": WAYS["dense"], "muon": Way("Muon", "fp32", {}, muon), "demo": WAYS["demo"], "dion-4": quarter,
        "dion-16": WAYS["dion"],
    }  # fmt: skip


NAMES = {"adamw": "AdamW", "muon": "Muon", "demo": "DeMo", "dion-4": "Dion 1/4", "dion-16": "Dion 1/16"}


def main() -> None:
    arguments = parse()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = known_runs(SAVED, "rows")
    names = arguments.only.split(",")
    with TemporaryDirectory() as text, ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        write_text(Path(text), arguments.steps)

        def train(runs: Sequence[Run]) -> None:
            """Trains what no row has yet."""
            done = {Run(row["name"], row["rate"], row["seed"]) for row in rows if row["steps"] == arguments.steps}
            started = [pool.submit(trained, run, arguments.steps, text) for run in runs if run not in done]
            for each in as_completed(started):
                rows.append(each.result())
                print(rows[-1], flush=True)
                save_more(SAVED, "rows", rows=rows)

        train([Run(name, rate, 0) for rate in arguments.rates for name in names])
        best = {name: best_rate(rows, name, arguments.steps) for name in names}
        train([Run(name, rate, seed) for seed in range(1, arguments.seeds) for name, rate in best.items()])
    print(table([row for row in rows if row["steps"] == arguments.steps]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--rates", type=lambda text: [float(part) for part in text.split(",")], default=RATES)
    parser.add_argument("--seeds", type=int, default=2)
    return parser.parse_args()


def write_text(folder: Path, steps: int) -> None:
    """Writes the tokens of all trainings."""
    from benchmarks.losses.size import text
    from benchmarks.losses.size.model import SMALL
    from benchmarks.losses.size.ranks import RANKS

    text.write(folder, steps * RANKS * SMALL.batch * SMALL.context, SMALL.words)


def trained(run: Run, steps: int, text: str) -> dict[str, Any]:
    """The row of a training, in a process of its own."""
    from benchmarks.gpu.device import Device
    from benchmarks.losses.size.model import SMALL
    from benchmarks.losses.size.training import Training

    training = Training(ways()[run.name], Path(text), Device.of("cpu", False), SMALL, BASE * run.rate, run.seed)
    found = training.curve_row(training.steps(steps, of=steps))
    held_out, facts = training.evaluate(), training.ranks.facts()
    training.ranks.close()
    sent = found["bytes a parameter"]
    return (
        run._asdict() | {"steps": steps, "parameters": training.parameters, "held_out": held_out, "bytes": sent} | facts
    )


def best_rate(rows: Sequence[dict[str, Any]], name: str, steps: int) -> float:
    """The rate whose training with seed 0 ended lowest."""
    own = [row for row in rows if (row["name"], row["seed"], row["steps"]) == (name, 0, steps)]
    return min(own, key=lambda row: row["held_out"])["rate"]


COLUMNS = ["", "rate", "held-out loss", "against AdamW", "bytes a parameter and step"]


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A line for each optimizer at its best rate: means over seeds, and their span where there are several."""
    own = {name: at_best(rows, name) for name in NAMES if any(row["name"] == name for row in rows)}
    losses = {name: [row["held_out"] for row in each] for name, each in own.items()}
    for name, each in own.items():
        against = f"{mean(losses[name]) / mean(losses['adamw']) - 1:+.1%}" if "adamw" in own and name != "adamw" else ""
        spread = f" ({span(losses[name], '.3f')})" if len(each) > 1 else ""
        loss = f"{mean(losses[name]):.3f}{spread}"
        rate = f"{each[0]['rate']:g}"
        if each[0]["rate"] == max(row["rate"] for row in rows if row["name"] == name):
            rate += ", none higher tried"
        yield [NAMES[name], rate, loss, against, f"{each[0]['bytes']:.3f}"]


def at_best(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The trainings of an optimizer at its best rate, of those with most steps."""
    steps = max(row["steps"] for row in rows if row["name"] == name)
    rate = best_rate(rows, name, steps)
    return [row for row in rows if (row["name"], row["rate"], row["steps"]) == (name, rate, steps)]


def table(rows: Sequence[dict[str, Any]]) -> str:
    return markdown(COLUMNS, list(lines(rows)))


if __name__ == "__main__":
    main()
