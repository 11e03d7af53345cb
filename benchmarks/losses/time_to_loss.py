"""Time until a language model over a slow link is at dense's loss + 1 %: communication every step, or every 15 or 30.

    python benchmarks/losses/time_to_loss.py --link loopback   # losses by step, on any link; skips runs that it has
    python benchmarks/losses/time_to_loss.py                   # step times, 100mbit and 10mbit, in turns; 5 minutes
    python benchmarks/losses/time_to_loss.py --width 280 --steps 1200 --link loopback     # 2 million parameters instead
    python benchmarks/losses/time_to_loss.py --width 280 --link 100mbit

4 hosts of one rank. Byte-level GPT (width 128, 2 layers: 0.5 million parameters), 1 x 64 bytes a rank and step, AdamW
and its schedule as in local_steps.py. A run that ends above dense's loss + 1 % is repeated with half as many steps
more, one that ends below with half as many. The time is the steps to that loss times the mean seconds of a step, so
dense's at 10 Mbit/s is computed. Writes benchmarks/results/time_to_loss_WIDTH_curves.json and time_to_loss_WIDTH.json,
and prints a Markdown table.
"""

import argparse
import json
import sys
import time
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.losses.local_steps import curve, inner_optimizer, scheduled
from benchmarks.shared.provenance import RESULTS, load, save, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

RANKS, POINTS, NEAR = 4, 40, 1.01


def results(width: int) -> tuple[str, str]:
    """The names of two results: losses by step, and step times."""
    return f"time_to_loss_{width}_curves", f"time_to_loss_{width}"


def settings() -> dict[str, dict[str, Any]]:
    """The arguments of `LocalSteps` by name; empty for a configuration that sends in every step."""
    import gradwire as gw

    bits = {"compressor": gw.Quantized(4)}
    return {
        "dense": {},
        "bf16": {},
        "powersgd:0.16667,bits=4": {},
        "DiLoCo, H = 15, 4 bits": {"inner_steps": 15, **bits},
        "DiLoCo, H = 30, 4 bits": {"inner_steps": 30, **bits},
        "streaming, H = 15, 4 bits": {"inner_steps": 15, "fragments": 3, "delay": 5, **bits},
        "SparseLoCo, 64 of 256, H = 15": {
            "compressor": gw.ChunkTopK(64, of=256, bits=2), "memory": gw.Residual(decay=0.95), "inner_steps": 15,
        },
    }  # fmt: skip


def main() -> None:
    arguments = parse()
    curves, times = results(arguments.width)
    as_rank(lambda: trained(arguments) if arguments.only else seconds(arguments))
    if arguments.link == "loopback":
        for seed in range(arguments.seeds):
            losses(arguments.steps, arguments.width, seed)
    else:
        links, own = arguments.link.split(","), ["--repeats", str(arguments.repeats), "--width", str(arguments.width)]
        taken = [collect(__file__, own, RANKS, link) for link in links]
        save(f"{times}.json", links=[{"link": link, "seconds": own} for link, own in zip(links, taken, strict=True)])
    if all((RESULTS / f"{name}.json").exists() for name in (curves, times)):
        for found in load(times)["links"]:
            print(f"\n{found['link']}\n\n{markdown(COLUMNS, cells(found['seconds'], load(curves)['runs']))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="100mbit,10mbit")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2250)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def losses(steps: int, width: int, seed: int) -> None:
    """Trains every configuration, except for runs that the results have with as many steps."""
    path = RESULTS / f"{results(width)[0]}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    runs: list[dict[str, Any]] = found["runs"] if found.get("steps") == steps else []

    def last_loss(name: str, own_steps: int) -> float:
        key = {"name": name, "steps": own_steps, "seed": seed}
        run = next((each for each in runs if each | key == each), None)
        if run is None:
            own = ["--only", name, "--steps", str(own_steps), "--width", str(width), "--seed", str(seed)]
            runs.append(run := key | {"curve": collect(__file__, own, RANKS, "loopback")})
            save_more(path.name, steps=steps, runs=runs)
        print(f"{name}, {own_steps} steps: {run['curve'][-1][1]:.3f}", flush=True)
        return run["curve"][-1][1]

    goal = NEAR * last_loss("dense", steps)
    for name in [*settings()][1:]:
        last_loss(name, round(steps * (0.5 if last_loss(name, steps) <= goal else 1.5)))


def trained(arguments: argparse.Namespace) -> list[tuple[int, float]]:
    """One run's held-out losses by step, which are the same on all ranks."""
    task, model, optimizer = made(arguments.width, arguments.seed)
    forward, stepper, end = wrapped(arguments.only, model, optimizer)
    steps = arguments.steps
    at = sorted({round(steps * point / POINTS) for point in range(1, POINTS + 1)})
    points = list(curve(task, model, stepper, scheduled(optimizer, steps), at, arguments.seed, forward))
    end()
    return points


def made(width: int, seed: int) -> tuple[Any, Any, Any]:
    """Task, model and inner optimizer."""
    from gradwire.lab.workloads import LanguageModel

    task = LanguageModel(width=width, layers=2, batch=1, max_bytes=1_000_000)
    model = task.build_model(seed)
    return task, model, inner_optimizer(model)


def wrapped(name: str, model: Any, optimizer: Any) -> tuple[Any, Any, Any]:
    """The module to call, the optimizer to step, and a function that ends the run."""
    from torch.nn.parallel import DistributedDataParallel

    import gradwire as gw

    if local := settings()[name]:
        stepper = gw.LocalSteps(optimizer, model, **local)
        return model, stepper, stepper.handle.detach
    ddp = DistributedDataParallel(model)
    return ddp, optimizer, (lambda: None) if name == "dense" else gw.attach(ddp, name).detach


def seconds(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of a step in each turn; of local steps the mean over a whole round, after one round to warm up."""
    turns: dict[str, list[float]] = {name: [] for name in settings()}
    for _ in range(arguments.repeats):
        for name, own in turns.items():
            own.append(timed(name, arguments.width, settings()[name].get("inner_steps", 4)))
    return turns


def timed(name: str, width: int, steps: int) -> float:
    import torch.distributed as dist

    task, model, optimizer = made(width, 0)
    forward, stepper, end = wrapped(name, model, optimizer)
    batches = task.batches(dist.get_rank(), RANKS, 0)
    start = 0.0
    for step in range(2 * steps):
        if step == steps:
            dist.barrier()
            start = time.perf_counter()
        stepper.zero_grad()
        task.training_loss(forward, next(batches)).backward()
        stepper.step()
    taken = (time.perf_counter() - start) / steps
    end()
    return taken


COLUMNS = ("", "loss", "ms a step", "steps to dense's loss + 1 %", "seconds", "sooner than dense")


def cells(taken: dict[str, list[float]], runs: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each way to train; means over seeds."""
    lines, dense_s = [], 0.0
    for name, turns in taken.items():
        steps = steps_to_loss(name, runs)
        reached_s = steps * mean(turns)
        dense_s = dense_s or reached_s
        loss = mean(run["curve"][-1][1] for run in equal(name, runs))
        reached = [f"{steps:.0f}", f"{reached_s:.0f}", f"{dense_s / reached_s:.1f}x"] if steps < inf else ["not"] * 3
        lines.append([name, f"{loss:.3f}", f"{1e3 * mean(turns):.0f}", *reached])
    return lines


def equal(name: str, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of as many steps as dense's, a seed each."""
    steps = runs[0]["steps"]
    return [run for run in runs if run["name"] == name and run["steps"] == steps]


def steps_to_loss(name: str, runs: list[dict[str, Any]]) -> float:
    """The mean over seeds of the fewest steps in which a run came within 1 % of dense's last loss."""
    fewest = []
    for dense in equal("dense", runs):
        goal = NEAR * dense["curve"][-1][1]
        own = [run for run in runs if (run["name"], run["seed"]) == (name, dense["seed"])]
        fewest.append(min((step for run in own for step, loss in run["curve"] if loss <= goal), default=inf))
    return mean(fewest)


if __name__ == "__main__":
    main()
