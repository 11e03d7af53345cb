"""Step times of a sharded language model: 2 hosts of 2 ranks with a slow link between the hosts only.

    python benchmarks/steps/shards.py                    # 100mbit; 5 minutes
    python benchmarks/steps/shards.py --link 1gbit

Native HSDP (`fully_shard` on the whole mesh) in float32, and reducing in bf16, beside `gw.attach`, and beside no
communication between the hosts. Byte-level GPT (width 320, 4 layers), sharded block by block, 1 x 64 bytes a rank and
step, SGD. Each configuration gets a fresh model, three steps to warm up, then `--steps` timed ones; all take turns,
`--repeats` times. Bytes are those that a host's interface has sent, per step and host, beside the declared ones, of
Gradwire or of a dense ring. Writes benchmarks/results/shards_LINK.json and prints a Markdown table.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect, sent_bytes
from benchmarks.shared.tables import markdown, middle

HOSTS, RANKS, WARM_UP = 2, 4, 3
NATIVE = {"native float32": 4, "native bf16": 2}
"""Bytes of an element between hosts."""
NAMES = [
    *NATIVE, "nothing between hosts", "bf16", "quantized:4", "topk:0.01", "powersgd:4", "powersgd:0.16667,bits=4",
    "acpsgd:4",
]  # fmt: skip


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    found = collect(__file__, sys.argv[1:], RANKS, arguments.link, HOSTS)
    save(f"shards_{arguments.link}.json", link=arguments.link, **found)
    print(f"\n{arguments.link}, {found['parameters']:,} parameters\n\n{markdown(COLUMNS, cells(found))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=4)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict[str, Any]:
    ways: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    parameters = 0
    for _ in range(arguments.repeats):
        for name, own in ways.items():
            parameters, found = measured(name, arguments.steps)
            own.append(found)
    return {
        "parameters": parameters,
        "ways": {
            name: {
                "ms": [each["ms"] for each in own],
                **{key: statistics.mean(each[key] for each in own) for key in ("declared", "measured")},
            }
            for name, own in ways.items()
        },
    }


def measured(name: str, steps: int) -> tuple[int, dict[str, Any]]:
    """The number of parameters, and of one turn the milliseconds of every step and a host's bytes per step."""
    import torch
    import torch.distributed as dist

    import gradwire as gw
    from gradwire.lab.jobs.sharded import mesh_of
    from gradwire.lab.workloads import LanguageModel

    task = LanguageModel(width=320, layers=4, batch=1, max_bytes=1_000_000)
    mesh = mesh_of(RANKS // HOSTS, torch.device("cpu"))
    model = task.build_model(seed=0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shard(model, mesh if name in NATIVE else mesh["shard"], torch.bfloat16 if name == "native bf16" else None)
    handle = gw.attach(model, name, mesh=mesh) if name in NAMES[3:] else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = task.batches(dist.get_rank(), RANKS, seed=0)
    ms, before = [], torch.zeros(2)
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            before = sent(handle)
        start = time.perf_counter()
        optimizer.zero_grad()
        task.training_loss(model, next(batches)).backward()
        optimizer.step()
        ms.append(1e3 * (time.perf_counter() - start))
    measured, declared = ((sent(handle) - before) / steps / HOSTS).tolist()
    if handle:
        handle.detach()
    return parameters, {
        "ms": ms[WARM_UP:],
        "measured": measured,
        "declared": declared or NATIVE.get(name, 0) * parameters,  # a ring of two hosts sends everything once
    }


def shard(model: Any, mesh: Any, reduced: Any) -> None:
    """Shards the model by blocks; gradients are reduced in the type `reduced`, None for their own."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(reduce_dtype=reduced)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def sent(handle: Any) -> Any:
    """Bytes of all hosts so far: (2,), at their interfaces, and declared."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    own = sent_bytes()  # the host's, whose ranks share it
    totals = torch.tensor([own * HOSTS / RANKS, handle.stats().wire_bytes if handle else 0], dtype=torch.float64)
    dist.all_reduce(totals)
    return totals


COLUMNS = ("", "ms a step", "native float32 is so many times longer", "MB from a host", "declared")


def cells(row: dict[str, Any]) -> list[list[str]]:
    """A line for each configuration: medians, and the least and the largest of a turn."""
    turns = {name: [statistics.median(ms) for ms in way["ms"]] for name, way in row["ways"].items()}
    return [
        [
            name,
            middle(turns[name], ".0f"),
            middle([dense / own for dense, own in zip(turns["native float32"], turns[name], strict=True)]),
            *(f"{way[key] / 1e6:.2f}" for key in ("measured", "declared")),
        ]
        for name, way in row["ways"].items()
    ]


if __name__ == "__main__":
    main()
