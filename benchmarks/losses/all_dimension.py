"""ADTopk: each row's largest elements beside top-k of as many bytes, one thing changed at a time.

    python benchmarks/losses/all_dimension.py                               # ten minutes on one core
    python benchmarks/losses/all_dimension.py --tasks cnn-sgd --cells "0.1 %"
    python benchmarks/losses/all_dimension.py --rates                       # dense at several: how they were chosen

Four workers' gradients are computed one after the other in one process and compressed by the formula; vectors travel
dense. An element of a row takes 6 bytes, one of top-k what `Entries` takes. The same seed means the same weights and
batches. Losses are held out: some 2,000 samples, evenly spread.

Writes benchmarks/results/all_dimension.json after every run, and prints Markdown tables. An interrupted run goes on
where it ended; remove the result after a change of this file.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from benchmarks.losses.convergence import Clothes
from benchmarks.losses.fidelity import Setting, rate
from benchmarks.losses.row_selection import Run, Selection, Worker, count
from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.tables import markdown, middle
from gradwire.lab.models import MODELS
from gradwire.lab.workloads import FashionMnist, LanguageModel

FILE = "all_dimension.json"
RANKS, STEPS = 4, 200


def cnn(optimizer: str, *rates: float) -> Setting:
    return Setting(lambda: FashionMnist(model="cnn", width=8, batch=8), optimizer, rates[1], rates)


def text(optimizer: str, *rates: float, **model: Any) -> Setting:
    return Setting(lambda: LanguageModel(context=32, batch=4, max_bytes=1_000_000, **model), optimizer, rates[1], rates)


TASKS = {
    "mlp-sgd": Setting(lambda: Clothes(batch=16), "sgd", 0.02, (0.01, 0.02, 0.05)),
    "cnn-sgd": cnn("sgd", 0.01, 0.02, 0.05),
    "cnn-adamw": cnn("adamw", 0.001, 0.003, 0.01),
    "lstm-sgd": text("sgd", 1.0, 2.0, 4.0, model="lstm", width=64, layers=1),
    "gpt-adamw": text("adamw", 0.004, 0.008, 0.016, model="gpt", width=48, layers=2, heads=3),
}
"""The second rate is used. Of those tried it is dense's best, or within 1 % of it, on one seed and 300 steps; the CNN's
of AdamW is that of `fidelity.py`."""


DENSE = Run(rows=False, ratio=1.0)
DEFAULT, IN_TURN = "1 %, residual", "in turn with top-k"
IN_CODE, IN_CODE_THIN = "rows as its code cuts them", "rows as its code cuts them, 0.1 %"
AS_ASKED = (DEFAULT, IN_CODE, IN_CODE_THIN)
"""Beside these stands top-k as in its code."""
CELLS = {
    DEFAULT: Run(),
    IN_TURN: Run(turns="exact"),
    "0.1 %": Run(ratio=0.001),
    IN_CODE: Run(cut="code"),
    IN_CODE_THIN: Run(cut="code", ratio=0.001),
    "DGC's memory": Run(memory="dgc"),
    "the other axis": Run(cut="shorter"),
    "in turn with a reused threshold": Run(turns="reused"),
}
"""The first has the package's defaults, each other one changes one thing."""
CELLS_OF = {
    "mlp-sgd": list(CELLS)[:3], "cnn-sgd": list(CELLS), "cnn-adamw": [DEFAULT], "lstm-sgd": list(CELLS)[:2],
    "gpt-adamw": list(CELLS)[:2],
}  # fmt: skip
PUBLISHED = ("resnet50", "resnet152", "vgg16", "lstm", "bert-base", "vit-large")


def tensors_of(run: Run) -> Run:
    """Top-k as in its code: of each tensor by itself, at the ratio that is asked of rows."""
    return replace(run, cut="tensor")


def main() -> None:
    arguments = arguments_of()
    torch.set_num_threads(1)
    tasks, seeds = arguments.tasks.split(","), [int(seed) for seed in arguments.seeds.split(",")]
    for name, task, seed in product(arguments.cells.split(";"), tasks, seeds):
        setting = TASKS[task]
        if arguments.rates:
            runs = [(DENSE, lr) for lr in setting.rates]
        else:
            runs = [(run, setting.lr) for run in runs_of(name) if name in CELLS_OF[task]]
        for run, lr in runs:
            measure(run, lr, task, seed, arguments)
    runs, asked = known_runs(arguments.save), list(asked_and_sent())
    save_more(arguments.save, ranks=RANKS, runs=runs, asked=asked)
    print("\n\n".join(table(*key, runs) for key in dict.fromkeys((run["task"], run["steps"]) for run in runs)))
    print(markdown(("asked", *PUBLISHED), asked))


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--cells", default=";".join(CELLS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--save", default=FILE)
    parser.add_argument("--rates", action="store_true", help="dense at several rates instead")
    return parser.parse_args()


def runs_of(name: str) -> list[Run]:
    """A cell's runs: its own, and those beside it."""
    run = CELLS[name]
    as_asked = [tensors_of(run)] if name in AS_ASKED else []
    return [run, run.beside, *as_asked, *([DENSE] if name == DEFAULT else [])]


def measure(run: Run, lr: float, task: str, seed: int, arguments: argparse.Namespace) -> None:
    """Trains a run that the results lack, and writes them."""
    runs = known_runs(arguments.save)
    key = asdict(run) | {"task": task, "seed": seed, "steps": arguments.steps, "lr": lr}
    if not any(key.items() <= other.items() for other in runs):
        runs.append(key | train(TASKS[task], run, lr, seed, arguments.steps))
        print(runs[-1], flush=True)
        save_more(arguments.save, ranks=RANKS, runs=runs)


def train(setting: Setting, run: Run, lr: float, seed: int, steps: int) -> dict[str, float]:
    """Losses, the share of elements that rows send, and the means of `shares`."""
    model = setting.task.build_model(seed)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() < 2) == few] for few in (False, True))
    optimizer = setting.optimizer_of([{"params": matrices}, {"params": vectors}], lr)
    if run.memory == "dgc":
        optimizer.param_groups[0]["momentum"] = 0.0
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    batches = [setting.task.batches(rank, RANKS, seed) for rank in range(RANKS)]
    workers = [Worker(Selection(run, [p.shape for p in matrices])) for _ in batches]
    losses, found = [], []
    for step in range(steps):
        # each worker's gradients, of which matrices are compressed
        gradients = []
        for own in batches:
            loss = setting.task.training_loss(model, next(own))
            losses.append(loss.item())
            gradients.append(torch.autograd.grad(loss / RANKS, matrices + vectors))
        flat = [parameters_to_vector(own[: len(matrices)]) for own in gradients]
        sent = sum(worker.send(own, step) for worker, own in zip(workers, flat, strict=True))
        assert isinstance(sent, Tensor)
        # their means; those of vectors are exact
        for p, part in zip(matrices, sent.split([p.numel() for p in matrices]), strict=True):
            p.grad = part.view_as(p)
        for p, own in zip(vectors, zip(*(own[len(matrices) :] for own in gradients), strict=True), strict=True):
            p.grad = torch.stack(own).sum(0)
        optimizer.step()
        schedule.step()
        found += [shares(workers, sent, torch.stack(flat).sum(0))] if run != DENSE else []
    held_out = setting.task.sums(model, 0, max(1, setting.task.held_out_size // 2000), whole=True)
    select = workers[0].select
    means = {key: fmean(each[key] for each in found) for key in found[0]} if found else {}
    losses_of = {"loss": setting.task.figures(held_out)["loss"], "training": fmean(losses[-RANKS * steps // 10 :])}
    return losses_of | {"sent": select.sent / select.n} | means


def shares(workers: list[Worker], sent: Tensor, exact: Tensor) -> dict[str, float]:
    """Of a step: `fit`, the cosine between the mean sent and that of the gradients; `tenth`, the share of a weight's
    energy that the tenth of its rows with the largest gradients has; and of these rows and of all, on the first worker,
    the magnitude that is left and that was sent: their quotient is a delay in steps."""
    # the rows of each weight, the largest gradients first
    rows, first = workers[0].select.rows, workers[0]
    energies = [exact[each].square().sum(1) for each in rows]
    large = [energy.topk(max(1, len(energy) // 10)) for energy in energies]
    found = {
        "fit": float(torch.cosine_similarity(sent, exact, 0)),
        "tenth": fmean(float(most.values.sum() / all_.sum()) for most, all_ in zip(large, energies, strict=True)),
    }
    at = torch.cat([each[most.indices].flatten() for each, most in zip(rows, large, strict=True)])
    for name, part in (("large", at), ("all", slice(None))):
        found[f"left_{name}"] = float(first.left[part].abs().sum())
        found[f"sent_{name}"] = float(first.sent[part].abs().sum())
    return found


def table(task: str, steps: int, runs: list[dict[str, Any]]) -> str:
    """A task's cells: its loss over top-k's and over dense's by seed, and both of each figure of `shares`."""
    columns = (f"{task}, {steps} steps", "sent", "over top-k", "over dense", *FIGURES, "a tenth of rows has")
    lines = []
    for name in CELLS_OF[task]:
        run = CELLS[name]
        both = own, rival = [of(task, steps, each, runs) for each in (run, run.beside)]
        if own and len(own) == len(rival):
            losses = [middle(over(own, of(task, steps, each, runs)), "+.1%") for each in (run.beside, DENSE)]
            pairs = [" / ".join(format(figure(key, each), form) for each in both) for key, form in FIGURES.values()]
            lines.append([name, f"{own[0]['sent']:.2%}", *losses, *pairs, f"{figure('tenth', rival):.0%}"])
        if name in AS_ASKED and (asked := of(task, steps, tensors_of(run), runs)):
            lines.append([f"{name}, over top-k of each tensor", "", middle(over(own, asked), "+.1%"), *[""] * 5])
    return markdown(columns, lines)


FIGURES = {
    "fit, rows / top-k": ("fit", ".2f"), "delay of the tenth of rows, rows / top-k": ("large", ".0f"),
    "of all, rows / top-k": ("all", ".0f"),
}  # fmt: skip


def figure(key: str, runs: list[dict[str, Any]]) -> float:
    """The median over seeds of a figure, delays as quotients."""
    return median(run[key] if key in run else run[f"left_{key}"] / run[f"sent_{key}"] for run in runs)


def of(task: str, steps: int, run: Run, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of one kind at the task's rate, by seed."""
    key = asdict(run) | {"task": task, "steps": steps, "lr": TASKS[task].lr}
    return sorted((each for each in runs if key.items() <= each.items()), key=lambda each: each["seed"])


def over(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[float]:
    """How much more loss a run has than another one with the same seed."""
    rivals = {each["seed"]: each["loss"] for each in others}
    return [each["loss"] / rivals[each["seed"]] - 1 for each in runs if each["seed"] in rivals]


def asked_and_sent() -> Iterable[list[str]]:
    """For each ratio, what rows cut as in its code send of the matrices of published models."""
    for ratio in (0.01, 0.001):
        cells = []
        for name in PUBLISHED:
            with torch.device("meta"):
                model = MODELS[name].build(MODELS[name].sized())
            shapes = [p.shape for p in model.parameters() if p.dim() > 1]
            sent = sum(x.numel() // x[1] * count(Run(cut="code", ratio=ratio), x[1]) for x in shapes)
            cells.append(f"{sent / sum(x.numel() for x in shapes):.2%}")
        yield [f"{ratio:.1%}", *cells]


if __name__ == "__main__":
    main()
