"""Losses of FSDP2 shards beside those of DDP, at equal bytes between hosts. No timing.

    python benchmarks/losses/shard_losses.py              # 500 steps, three seeds; 6 minutes each, on two cores
    python benchmarks/losses/shard_losses.py --seeds 1 --steps 50

2 hosts of 2 ranks, dense inside of a host and compressed between them: by FSDP2 with `mesh=`, and by DDP with
`ProcessGroup.by_host(2)`. Byte-level GPT (width 64, 2 layers), 4 windows of 64 bytes a rank and step, AdamW and its
schedule as in local_steps.py. On shards PowerSGD sends (rows / 2 + columns) * rank from each rank, so rank 4 there
sends as much as rank 6 of DDP. After the last step every shard must be bit-equal to that of the other replica. Writes
benchmarks/results/shard_losses.json after each seed, skips seeds that it has, and prints a Markdown table.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.losses.local_steps import inner_optimizer, scheduled
from benchmarks.shared.provenance import RESULTS, save_more
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown, span

RANKS, HOST = 4, 2
PAIRS = {
    "FP32": ("fp32", "fp32"), "4 bits": ("quantized:4", "quantized:4"), "TopK 5%": ("topk:0.05", "topk:0.05"),
    "PowerSGD": ("powersgd:4", "powersgd:6"),
}  # fmt: skip
"""The compressor of shards, and of whole gradients."""


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    path = RESULTS / "shard_losses.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    rows: list[dict[str, Any]] = found["rows"] if found.get("steps") == arguments.steps else []
    for seed in {*range(arguments.seeds)} - {row["seed"] for row in rows}:
        rows += collect(__file__, [*sys.argv[1:], "--seed", str(seed)], RANKS, "loopback")
        save_more(path.name, "rows", steps=arguments.steps, rows=rows)
    print(f"\n{markdown(COLUMNS, cells(rows))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"name": name, "seed": arguments.seed, "shards": train(on_shards, arguments, True)}
        | {"whole": train(on_whole, arguments, False)}
        for name, (on_shards, on_whole) in PAIRS.items()
    ]


def train(compressor: str, arguments: argparse.Namespace, sharded: bool) -> dict[str, Any]:
    """The held-out loss, bytes from a host per step, and whether the replicas are bit-equal, after the last step."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import gradwire as gw
    from gradwire.lab.configuration import parse as configured
    from gradwire.lab.jobs.sharded import gather_into, mesh_of
    from gradwire.lab.jobs.sharded import sharded as by_blocks
    from gradwire.lab.workloads import LanguageModel

    task = LanguageModel(width=64, layers=2, batch=4)
    model = task.build_model(arguments.seed)
    if sharded:
        mesh = mesh_of(HOST, torch.device("cpu"))
        trained = by_blocks(model, mesh, configured(compressor))
        handle = gw.attach(trained, compressor, mesh=mesh, seed=arguments.seed)
    else:
        trained = DistributedDataParallel(model)
        handle = gw.attach(trained, compressor, transport=gw.ProcessGroup.by_host(HOST), seed=arguments.seed)
    optimizer = inner_optimizer(trained)
    rate = scheduled(optimizer, arguments.steps)
    batches = task.batches(dist.get_rank(), RANKS, arguments.seed)
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        task.training_loss(trained, next(batches)).backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        rate.step()
    same = handle.verify() == []
    whole = gather_into(task.build_model(arguments.seed), trained)
    totals = torch.tensor([*task.sums(whole, dist.get_rank(), RANKS), handle.stats().wire_bytes], dtype=torch.float64)
    dist.all_reduce(totals)
    *sums, sent = totals.tolist()
    handle.detach()
    return {"loss": task.figures(sums)["loss"], "bytes": sent * HOST / RANKS / arguments.steps, "same": same}


COLUMNS = (
    "", "loss on shards", "loss of DDP", "difference of the means", "DDP's seeds differ by", "KB on shards",
    "KB of DDP", "replicas",
)  # fmt: skip


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each compressor."""
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows):
        shards, whole = ([row[kind] for row in rows if row["name"] == name] for kind in ("shards", "whole"))
        losses = [[run["loss"] for run in runs] for runs in (shards, whole)]
        lines.append([
            name,
            *(f"{mean(own):.3f} ({span(own, '.3f')})" for own in losses),
            f"{mean(losses[0]) - mean(losses[1]):+.3f}",
            f"{max(losses[1]) - min(losses[1]):.3f}",
            *(f"{mean(run['bytes'] for run in runs) / 1e3:.1f}" for runs in (shards, whole)),
            "bit-equal" if all(run["same"] for run in [*shards, *whole]) else "differ",
        ])  # fmt: skip
    return lines


if __name__ == "__main__":
    main()
