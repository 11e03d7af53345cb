"""Does a rehearsal agree with training? Its worth of a step, beside the loss of `fidelity.py`.

    python benchmarks/losses/worth.py

The byte-level LSTM and GPT of `fidelity.py` train 12 dense steps in one process. Of the next 8 steps' gradients the
sample that `Auto` takes is kept, and each way to send rehearses with it. Losses are held out, against dense, after 300
steps, the means of the seeds in benchmarks/results/fidelity.json.

Writes benchmarks/results/worth.json, and prints a Markdown table.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch

from benchmarks.losses.fidelity import CONFIGURATIONS, STEPS, TASKS, against_dense, of_task
from benchmarks.shared.provenance import load, save
from gradwire.controllers.gain import delay_of, efficiency_of
from gradwire.lab.configuration import parse
from gradwire.ops.sample import sampled
from gradwire.plans import Group, default_communicator, default_memory
from gradwire.tuner import rehearsal

REHEARSED = ("lstm-sgd", "gpt-adamw")
BEFORE, KEPT = 12, 8
UNTRAINED = {"RandomK 1 %": "randomk:0.01"}
WAYS = {name: text for name, text in CONFIGURATIONS.items() if name != "dense"} | UNTRAINED


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    rows = [row for task in REHEARSED for row in rehearsed(task)]
    save("worth.json", rows=rows)
    print("| | task | delay, steps | worth | held out against dense |\n|---|---|---|---|---|")
    for row in rows:
        loss = "-" if row["loss"] is None else f"{row['loss']:+.1%}"
        print(f"| {row['name']} | {row['task']} | {row['delay']:.2f} | {row['worth']:.2f} | {loss} |")


def rehearsed(task: str) -> list[dict[str, Any]]:
    """A row for each way to send."""
    found, runs = gradients(task), of_task(task, STEPS, load("fidelity")["runs"])
    rows: list[dict[str, Any]] = []
    for name, text in WAYS.items():
        gaps = against_dense(runs, name)
        if not gaps and name not in UNTRAINED:
            continue
        compressor = parse(text).compressor
        assert compressor
        way = Group((), compressor, default_memory(compressor), default_communicator(compressor))
        share = rehearsal.share(way, found)
        rows.append(
            {"task": task, "name": name, "delay": delay_of(share), "worth": efficiency_of(share),
             "loss": fmean(gaps) if gaps else None}
        )  # fmt: skip
    return rows


def gradients(task: str) -> list[dict[str, torch.Tensor]]:
    """Samples of the gradients of dense steps."""
    setting = TASKS[task]
    model = setting.task.build_model(0)
    optimizer = setting.optimizer_of(model.parameters(), setting.lr)
    batches, kept = setting.task.batches(0, 1, 0), []
    for step in range(BEFORE + KEPT):
        for group in optimizer.param_groups:
            group["lr"] = setting.lr * min(1.0, (step + 1) / (STEPS / 20))
        optimizer.zero_grad()
        setting.task.training_loss(model, next(batches)).backward()
        if step >= BEFORE:
            kept.append(sampled({name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
        optimizer.step()
    return kept


if __name__ == "__main__":
    main()
