"""The delay of elements under top-k with error feedback, and the steps that it costs.

    python benchmarks/losses/delays.py                  # a ResNet, a VGG, an LSTM; factors of 10x to 1000x, one seed
    python benchmarks/losses/delays.py --tasks lm --factors 10,100

Four ranks' gradients are computed one after the other and compressed by the formula, one group each, without Gradwire's
engine and without a clock. A delay is the residual over the sent part, in squares (energy) or absolute values
(magnitude), the median of the last third of the steps. A factor's progress is the number of steps that dense takes,
over the number that the factor takes, until the held-out loss is within 5 % of dense's lowest in the first third of its
steps, or in all of them. Beside it stands the gain that GraVAC reads with windows of 8 steps. Writes
benchmarks/results/delays.json and prints a Markdown table.
"""

import argparse
import sys
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from benchmarks.shared.provenance import save
from benchmarks.shared.tables import markdown
from gradwire.controllers.gain import Reading, share_of
from gradwire.controllers.gravac import HORIZON_WINDOWS
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.workloads.make_task import make_task

TASKS = {
    "digits": ("width=96",),
    "fashion-mnist": ("model=cnn", "width=48", "batch=8"),
    "lm": ("model=lstm", "width=320", "layers=1", "context=24"),
}
"""The options of each task: models of a million parameters."""
RANKS, LOOK = 4, 4
HORIZON = 8 * HORIZON_WINDOWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--factors", default="10,40,100,160,1000")
    parser.add_argument("--steps", type=int, default=120, help="of the dense run; the others take twice as many")
    arguments = parser.parse_args()
    rows, dense = [], []
    ends = arguments.steps / 3, arguments.steps
    for task, factor in product(arguments.tasks.split(","), [1.0, *map(float, arguments.factors.split(","))]):
        delays, losses = train(task, factor, arguments.steps * (1 if factor == 1 else 2))
        if factor == 1:
            goals = [1.05 * min(loss for step, loss in losses.items() if step <= steps) for steps in ends]
            dense = [(first_below(losses, goal), goal) for goal in goals]
            continue
        rows.append(row(task, factor, delays[len(delays) * 2 // 3 :], losses, dense))
    save("delays.json", rows=rows)
    print(table(rows))


def train(name: str, factor: float, steps: int) -> tuple[list[tuple[float, float]], dict[int, float]]:
    """Each step's delays by energy and by magnitude, and the held-out loss after every fourth step."""
    task = make_task(name, TASKS[name])
    model = task.build_model(0)
    optimizer = Recipe().make_optimizer(task, model.parameters())
    batches = [task.batches(rank, RANKS, 0) for rank in range(RANKS)]
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    residuals = [torch.zeros(sum(sizes)) for _ in range(RANKS)]
    delays, losses = [], {}
    for step in range(1, steps + 1):
        norms, mean = torch.zeros(2, 2), torch.zeros(sum(sizes))
        for rank, residual in enumerate(residuals):
            inputs, targets = next(batches[rank])
            gradients = torch.autograd.grad(task.loss(model(inputs), targets), parameters)
            residual += parameters_to_vector(gradients)
            sent = send(residual, factor)
            norms += torch.stack([norms_of(residual), norms_of(sent)])
            mean += sent / RANKS
        for parameter, part in zip(parameters, mean.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()
        left, gone = norms.tolist()
        delays.append((left[0] / gone[0], left[1] / gone[1]))
        if step % LOOK == 0:
            losses[step] = task.evaluate(model)["loss"]
    return delays, losses


def send(residual: Tensor, factor: float) -> Tensor:
    """Moves the largest elements out of the residual; the sent vector."""
    sent = torch.zeros_like(residual)
    indices = residual.abs().topk(round(len(residual) / factor)).indices
    sent[indices] = residual[indices]
    residual[indices] = 0
    return sent


def norms_of(x: Tensor) -> Tensor:
    return torch.stack([x.square().sum(), x.abs().sum()])


def first_below(losses: dict[int, float], goal: float) -> int | None:
    return next((step for step, loss in losses.items() if loss <= goal), None)


def row(task: str, factor: float, delays: list[Any], losses: dict[int, float], dense: list[Any]) -> dict[str, Any]:
    energy, magnitude = (median(column) for column in zip(*delays, strict=True))
    took = [(steps, first_below(losses, goal)) for steps, goal in dense]
    gain = Reading("delay", HORIZON).of(share_of(magnitude))
    return {
        "task": task, "factor": factor, "energy": energy, "magnitude": magnitude, "per_factor": magnitude / factor,
        "progress": [dense_steps / steps if steps else None for dense_steps, steps in took], "gain": gain,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    columns = (
        "task", "factor", "delay by energy", "by magnitude", "per factor", "progress in the first third", "in all",
        "gain, windows of 8",
    )  # fmt: skip
    lines: list[list[str]] = []
    for r in rows:
        early, late = ("not there" if share is None else f"{share:.2f}" for share in r["progress"])
        figures = f"{r['energy']:.1f}", f"{r['magnitude']:.1f}", f"{r['per_factor']:.2f}"
        lines.append([r["task"], f"{r['factor']:g}x", *figures, early, late, f"{r['gain']:.2f}"])
    return markdown(columns, lines)


if __name__ == "__main__":
    main()
