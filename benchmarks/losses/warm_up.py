"""Does a first stage in 8 bits help a sparse plan? Held-out loss after equal steps, with it, without it, and dense.

    python benchmarks/losses/warm_up.py

The byte-level LSTM and GPT of `fidelity.py`, two ranks over gloo, 300 steps; top-k 1/16 in entries of 10 bits, from the
start and after 30 steps with all elements in 8 bits. The same seed means the same weights and batches. Bytes are the
mean step's, the first stage included.

Writes benchmarks/results/warm_up.json after every run, and prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.losses.fidelity import RANKS, STEPS, TASKS, against_dense, train
from benchmarks.shared.provenance import load, save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from gradwire.transports import ProcessGroup

FILE = "warm_up.json"
CONFIGURATIONS = {
    "dense": "dense",
    "top-k 1/16 in 10 bits": "topk:0.0625,value_bits=4",
    "the same, 8 bits for 30 steps": "topk:0.0625,value_bits=4+warmup:bits=8,steps=30",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="lstm-sgd,gpt-adamw")
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    tasks, seeds = arguments.tasks.split(","), [int(seed) for seed in arguments.seeds.split(",")]
    as_rank(lambda: job(tasks[0], seeds[0]))
    runs: list[dict[str, Any]] = []
    for task in tasks:
        for seed in seeds:
            runs += collect(__file__, ["--seeds", str(seed), "--tasks", task], RANKS, "loopback")
            save(FILE, ranks=RANKS, runs=runs)
    print("\n\n".join(table(task) for task in tasks))


def job(task: str, seed: int) -> list[dict[str, Any]]:
    """All configurations of one task and seed."""
    transport, lr = ProcessGroup.own(), TASKS[task].lr
    return [
        {"task": task, "seed": seed, "name": name, "lr": lr} | train(text, task, seed, lr, STEPS, transport)
        for name, text in CONFIGURATIONS.items()
    ]


def table(task: str) -> str:
    runs = [run for run in load(FILE.removesuffix(".json"))["runs"] if run["task"] == task]
    cells: list[list[str]] = []
    for name in list(CONFIGURATIONS)[1:]:
        own = next(run for run in runs if run["name"] == name)
        gaps = ", ".join(f"{gap:+.1%}" for gap in against_dense(runs, name))
        cells.append([name, f"{own['bytes']:.0f}", f"{own['dense_bytes'] / own['bytes']:.1f}", gaps])
    return markdown((task, "bytes a step", "x", "held out against dense, by seed"), cells)


if __name__ == "__main__":
    main()
