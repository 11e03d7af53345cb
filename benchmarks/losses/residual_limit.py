"""A residual with a limit: one batch of loss x 1e4 where the user clips or leaves a step out, and the same without it.

    python benchmarks/losses/residual_limit.py      # two ranks, a quarter of an hour on one core

`gw.Residual(limit=4)` beside `gw.Residual()`: digits as in `skipped.py`, two seeds; a byte-level LSTM of width 64 with
SGD and a byte-level GPT of width 48 with AdamW, 16 windows of 32 bytes a step, else the tasks and rates of
`fidelity.py`, one seed. 150 steps. A third of the way in the loss of one batch is multiplied. The user clips the mean
gradient's norm to twice the median of the last 20 norms, as clipped; or leaves out `optimizer.step()` where it is above
8 times that, without `handle.skip()` or with it.

Writes benchmarks/results/residual_limit.json and prints a Markdown table of losses, held out but for the digits.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import gradwire as gw
from benchmarks.losses.fidelity import TASKS, rate
from benchmarks.losses.skipped import LIMIT, SPIKE, digits, mlp
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from gradwire.lab.workloads import LanguageModel

STEPS, SPIKE_AT, LIMITS = 150, 50, (None, 4.0)
FAMILIES = {
    "PowerSGD r4": gw.PowerSGD(4), "TopK 5 %": gw.TopK(0.05), "EFSignSGD": gw.EFSignSGD()
}  # fmt: skip
USERS = ("no spike", "clips", "leaves out step()", "handle.skip()")
RUNS = [*product(("digits",), (0, 1)), ("lstm-sgd", 0), ("gpt-adamw", 0)]
MODELS = {"lstm-sgd": {"model": "lstm", "width": 64, "layers": 1}, "gpt-adamw": {"width": 48, "layers": 2, "heads": 3}}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    as_rank(measure)
    (rows,) = collect(__file__, [], 2, "loopback")

    def cell(*about: Any) -> str:
        return ", ".join(f"{row['loss']:.3f}" for row in rows if (row["task"], row["family"], row["limit"]) == about[:3]
                         and row["user"] == about[3])  # fmt: skip

    cells = [
        [f"{task}, {family}, {limit or 'none'}", *(cell(task, family, limit, user) for user in USERS)]
        for task, family, limit in product(dict(RUNS), FAMILIES, LIMITS)
    ]
    print(markdown(["task, family, limit", *USERS], cells))
    save("residual_limit.json", losses=rows)


def measure() -> list[list[dict]]:
    torch.set_num_threads(1)
    return [
        [
            {"task": task, "family": family, "limit": limit, "user": user, "seed": seed}
            | {"loss": train(task, seed, FAMILIES[family], gw.Residual(limit=limit), user)}
            for (task, seed), family, limit, user in product(RUNS, FAMILIES, LIMITS, USERS)
        ]
    ]


def train(task: str, seed: int, compressor: gw.Compressor, memory: gw.Residual, user: str) -> float:
    """The loss after the last step."""
    model, optimizer, loss_of_a_batch, loss_at_the_end = (on_digits if task == "digits" else on_text)(task, seed)
    handle = gw.attach(ddp := DDP(model), compressor, memory=memory)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if task == "digits" else rate(step, STEPS))
    norms = list[float]()
    for step in range(STEPS):
        optimizer.zero_grad()
        spike = SPIKE if step == SPIKE_AT and user != "no spike" else 1
        (loss_of_a_batch(ddp) * spike).backward()
        if steps_after(user, handle, ddp, norms):
            optimizer.step()
        schedule.step()
    handle.detach()
    return loss_at_the_end(model)


def steps_after(user: str, handle: Any, ddp: nn.Module, norms: list[float]) -> bool:
    """Whether the user takes the step; gradients are clipped then."""
    norm = float(nn.utils.get_total_norm(p.grad for p in ddp.parameters() if p.grad is not None))
    if len(norms) > 10:
        usual = median(norms[-20:])
        if user in ("leaves out step()", "handle.skip()") and norm > LIMIT * usual:
            if user == "handle.skip()":
                handle.skip()
            return False
        if user == "clips":
            nn.utils.clip_grad_norm_(ddp.parameters(), 2 * usual)
            norm = min(norm, 2 * usual)
    norms.append(norm)
    return True


Training = tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], torch.Tensor], Callable[[nn.Module], float]]
"""A model, its optimizer, the loss of this rank's next batch, and the loss at the end."""


def on_digits(task: str, seed: int) -> Training:
    inputs, labels = digits()
    torch.manual_seed(seed)
    model = mlp(64, 10)
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())

    def next_loss(ddp: nn.Module) -> torch.Tensor:
        batch = torch.randint(len(inputs), (32,), generator=generator)
        return nn.functional.cross_entropy(ddp(inputs[batch]), labels[batch])

    @torch.no_grad()
    def whole(model: nn.Module) -> float:
        return float(nn.functional.cross_entropy(model(inputs), labels))

    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), next_loss, whole


def on_text(name: str, seed: int) -> Training:
    setting, task = TASKS[name], LanguageModel(context=32, batch=8, max_bytes=2_000_000, **MODELS[name])
    model, batches = task.build_model(seed), task.batches(dist.get_rank(), 2, seed)
    optimizer = setting.optimizer_of(model.parameters(), setting.lr)
    return (
        model,
        optimizer,
        lambda ddp: task.training_loss(ddp, next(batches)),
        lambda model: task.evaluate(model)["loss"],
    )


if __name__ == "__main__":
    main()
