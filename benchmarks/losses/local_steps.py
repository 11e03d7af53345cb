"""Local steps on a language model: held-out loss against bytes sent. No timing.

    python benchmarks/losses/local_steps.py   # 4 ranks, 2,250 steps, H = 15 and 30, three seeds
    python benchmarks/losses/local_steps.py --only sparseloco-15 --seeds 1

Byte-level GPT (width 64, 2 layers) on the standard library's sources, 4 windows of 64 bytes a rank and step, AdamW at
one rate for all, warmed up over 5 % of the steps and then decaying to a tenth; nothing is tuned but SparseLoCo's outer
steps. The loss is that of the parameters that all replicas share. "single" is one replica with all of the data, which
takes Nesterov's outer step as well. Writes benchmarks/results/local_steps.json after each run, skips runs that it has,
and prints a Markdown table.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import known_runs, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

SAVED = "local_steps.json"
RATE = 2e-3
H, LONG = 15, 30


def settings() -> dict[str, dict[str, Any]]:
    """The arguments of `LocalSteps` by name; empty for a step with all ranks' gradients."""
    import gradwire as gw

    sparse = {"memory": gw.Residual(decay=0.95), "outer": gw.Outer(lr=1.0, momentum=0)}
    loco = gw.ChunkTopK(64, of=4096, bits=2)

    def nesterov(compressor: gw.ChunkTopK) -> dict[str, Any]:
        """With DiLoCo's outer optimizer."""
        return {"compressor": compressor, "inner_steps": H, "memory": gw.Residual(decay=0.95)}

    return {
        "dense": {},
        "single": {"inner_steps": H},
        "diloco-15": {"inner_steps": H},
        "diloco-30": {"inner_steps": LONG},
        "diloco-15-4bits": {"compressor": gw.Quantized(4), "inner_steps": H},
        "streaming-15-4bits": {
            "compressor": gw.Quantized(4), "inner_steps": H, "fragments": 3, "delay": 2, "mix": 0.5,
            "outer": gw.Outer(lr=0.4, momentum=0.9),
        },
        "sparseloco-15": {"compressor": loco, "inner_steps": H, **sparse},
        "sparseloco-30": {"compressor": loco, "inner_steps": LONG, **sparse},
        "sparseloco-15-eighth": {"compressor": gw.ChunkTopK(64, of=512), "inner_steps": H, **sparse},
        "sparseloco-15-eighth-nesterov": nesterov(gw.ChunkTopK(64, of=512)),
        "sparseloco-15-quarter-nesterov": nesterov(gw.ChunkTopK(64, of=256)),
        "sparseloco-15-half-nesterov": nesterov(gw.ChunkTopK(64, of=128)),
        "sparseloco-15-half-nesterov-0.8": nesterov(gw.ChunkTopK(64, of=128)) | {"outer": gw.Outer(1.0, momentum=0.8)},
        "sparseloco-15-half-nesterov-0.8-4bits": nesterov(gw.ChunkTopK(64, of=128, bits=4))
        | {"outer": gw.Outer(1.0, momentum=0.8)},
        "sparseloco-15-eighth-nesterov-senders": nesterov(gw.ChunkTopK(64, of=512))
        | {"communicator": gw.AllGather(over_senders=True)},
        "local-sgd-15": {"inner_steps": H, "outer": gw.Outer(lr=1.0, momentum=0)},
    }  # fmt: skip


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    rows = known_runs(SAVED, "rows")
    job = {"steps": arguments.steps, "ranks": arguments.ranks}
    done = {(row["name"], row["seed"]) for row in rows if row | job == row}
    for seed in range(arguments.seeds):
        for name in settings():
            if arguments.only in (None, name) and (name, seed) not in done:
                own = ["--steps", str(arguments.steps), "--only", name, "--seed", str(seed)]
                cell = collect(__file__, own, arguments.ranks, "loopback")
                rows.append({"name": name, "seed": seed} | job | cell)
                print(rows[-1], flush=True)
                save_more(SAVED, "rows", rows=rows)
    print(f"\n{table([row for row in rows if row | job == row])}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2250)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="one of the settings")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict[str, Any]:
    import gradwire as gw
    from gradwire.lab.workloads.language import LanguageModel

    name, steps = arguments.only, arguments.steps
    task = LanguageModel(width=64, layers=2, batch=4)
    model = task.build_model(arguments.seed)
    optimizer = inner_optimizer(model)
    every = gw.DistributedOptimizer(optimizer, model, gw.FP32()) if name in ("dense", "single") else optimizer
    stepper = every if name == "dense" else gw.LocalSteps(every, model, **settings()[name])
    at = (steps // 2, steps)
    losses = [loss for _, loss in curve(task, model, stepper, scheduled(optimizer, steps), at, arguments.seed)]
    sent = (every if name == "single" else stepper).handle.stats().wire_bytes / steps
    return {
        "half": losses[0],
        "loss": losses[-1],
        "bytes": sent,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def curve(
    task: Any, model: Any, stepper: Any, rate: Any, at: Sequence[int], seed: int, forward: Any = None
) -> Iterator[tuple[int, float]]:
    """Trains to the last of the steps `at`, and yields at each the held-out loss of the shared parameters. `forward` is
    the model's wrapper, by default the model itself."""
    import torch
    import torch.distributed as dist

    batches = task.batches(dist.get_rank(), dist.get_world_size(), seed)
    for step in range(1, at[-1] + 1):
        stepper.zero_grad()
        task.training_loss(forward or model, next(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        rate.step()
        if step in at:
            with getattr(stepper, "shared_parameters", nullcontext)():
                sums = torch.tensor(task.sums(model, dist.get_rank(), dist.get_world_size()), dtype=torch.float64)
            dist.all_reduce(sums)
            yield step, task.figures(sums.tolist())["loss"]


def inner_optimizer(model: Any) -> Any:
    from torch.optim import AdamW

    return AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)


def scheduled(optimizer: Any, steps: int) -> Any:
    from torch.optim.lr_scheduler import LambdaLR

    return LambdaLR(optimizer, lambda step: factor(step, steps))


def factor(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up to 1, then down a cosine to 0.1."""
    warm = max(1, steps // 20)
    return min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps)))


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each setting: means over seeds, and the spread."""
    cells: list[list[str]] = []
    dense = [row["bytes"] for row in rows if row["name"] == "dense"]
    for name in settings():
        own = [row for row in rows if row["name"] == name]
        if own:
            losses = [row["loss"] for row in own]
            half, sent = (statistics.mean(row[key] for row in own) for key in ("half", "bytes"))
            spread = f" ± {(max(losses) - min(losses)) / 2:.3f}" if len(own) > 1 else ""
            times = f"{dense[0] / sent:.0f}x" if dense else ""
            cells.append([name, f"{half:.3f}", f"{statistics.mean(losses):.3f}{spread}", f"{sent:,.0f}", times])
    return markdown(("setting", "loss after half", "loss", "bytes per step and rank", "fewer"), cells)


if __name__ == "__main__":
    sys.exit(main())
