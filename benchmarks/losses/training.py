"""Loss after the same number of steps, and time to dense's loss, on the byte-level language model.

    python benchmarks/losses/training.py                              # 100mbit, 2 hosts, three seeds
    python benchmarks/losses/training.py --link loopback --seeds 0    # only losses, which do not depend on the link

A two-layer LSTM on the standard library's sources, SGD with momentum 0.9, gradients clipped to norm 1, learning rate 1
falling to 0 along a cosine. The wall time is that of rank 0's training steps, without evaluation. A configuration that
does not come within 2 % of dense's last loss in equal steps trains again, for half as many more. Writes
benchmarks/results/training.json and prints a Markdown table.
"""

import argparse
import statistics
import sys
import time
from math import inf
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

CONFIGURATIONS = {
    "dense fp32 (DDP)": None, "TopK 1 %": gw.TopK(0.01), "EFSignSGD": gw.EFSignSGD(), "PowerSGD r4": gw.PowerSGD(4),
    "QSGD 8 bit": gw.QSGD(),
}  # fmt: skip
NEAR, LONGER = 1.02, 1.5
COLUMNS = (
    "configuration", "held-out loss, by seed", "against dense", "s to the end", "s to dense's loss + 2 %, in steps",
    "sooner than dense",
)  # fmt: skip


def main() -> None:
    arguments = parse()
    as_rank(lambda: compare(arguments))
    runs: list[dict] = []
    for seed in arguments.seeds.split(","):
        own = collect(__file__, [*sys.argv[1:], "--seed", seed], 2, arguments.link)
        runs += own
        print(f"seed {seed}: " + ", ".join(f"{run['name']} {run['loss']:.4f} in {run['wall_s']:.0f} s" for run in own))
        save(arguments.save, link=arguments.link, steps=arguments.steps, runs=runs)
    print(f"\n{table(runs)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--save", default="training.json")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(arguments: argparse.Namespace) -> list[dict]:
    """One seed's runs; all ranks see the same losses, so all train again or none."""
    runs: list[dict] = []
    for name, compressor in CONFIGURATIONS.items():
        runs.append(train(name, compressor, arguments, arguments.steps))
        if time_to(runs[-1], NEAR * runs[0]["loss"]) == inf:
            runs.append(train(name, compressor, arguments, round(LONGER * arguments.steps)))
    return runs


def train(name: str, compressor, arguments: argparse.Namespace, steps: int) -> dict:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    from gradwire.lab.workloads import LanguageModel

    task = LanguageModel(model="lstm", width=arguments.width, batch=arguments.batch)
    ddp = DDP(task.build_model(arguments.seed))
    handle = gw.attach(ddp, compressor, seed=arguments.seed) if compressor else None
    optimizer = torch.optim.SGD(ddp.parameters(), lr=arguments.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = task.batches(dist.get_rank(), dist.get_world_size(), arguments.seed)
    wall_s, curve = 0.0, []
    for step in range(1, steps + 1):
        inputs, targets = next(batches)
        start = time.perf_counter()
        optimizer.zero_grad()
        task.loss(ddp(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        wall_s += time.perf_counter() - start
        if step in looks(steps):
            curve.append((step, wall_s, task.evaluate(ddp.module)["loss"]))
            dist.barrier()
    sent = handle.stats().wire_bytes if handle else 4 * sum(p.numel() for p in ddp.parameters()) * steps
    if handle:
        handle.detach()
    return {
        "name": name, "seed": arguments.seed, "steps": steps, "loss": curve[-1][2], "wall_s": wall_s, "curve": curve,
        "sent": sent,
    }  # fmt: skip


def looks(steps: int) -> set[int]:
    """The steps after which the held-out loss is taken: some 30, and the last."""
    every = max(1, steps // 30)
    return {*range(every, steps, every), steps}


def table(runs: list[dict]) -> str:
    dense = {run["seed"]: run for run in runs if run["name"].startswith("dense")}
    near = {seed: NEAR * run["loss"] for seed, run in dense.items()}
    cells: list[list[str]] = []
    for name in CONFIGURATIONS:
        mine = [run for run in runs if run["name"] == name]
        equal = [run for run in mine if run["steps"] == dense[run["seed"]]["steps"]]
        worse = [run["loss"] / dense[run["seed"]]["loss"] - 1 for run in equal]
        best = [min((time_to(run, near[seed]), run["steps"]) for run in mine if run["seed"] == seed) for seed in dense]
        reached = [f"{seconds:.0f} ({steps})" if seconds < inf else "not" for seconds, steps in best]
        sooner = [time_to(dense[seed], near[seed]) / seconds for seed, (seconds, _) in zip(dense, best, strict=True)]
        cells.append([
            name, ", ".join(f"{run['loss']:.3f}" for run in equal), ", ".join(f"{w:+.1%}" for w in worse),
            f"{statistics.median(run['wall_s'] for run in equal):.0f}", ", ".join(reached),
            ", ".join(f"{times:.1f}x" if times else "-" for times in sooner),
        ])  # fmt: skip
    return markdown(COLUMNS, cells)


def time_to(run: dict, loss: float) -> float:
    """Seconds until the held-out loss was first at most `loss`; infinite where it never was."""
    return next((wall_s for _, wall_s, held_out in run["curve"] if held_out <= loss), inf)


if __name__ == "__main__":
    main()
