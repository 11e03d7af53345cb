"""Step times on the emulated network: Gradwire beside DDP and torch's hooks, in turns in one run.

    python benchmarks/steps/steps.py                       # 100mbit and 1gbit, 2 ranks, all models
    python benchmarks/steps/steps.py --links 1gbit --models gpt --ranks 4

Every configuration gets a fresh model and DDP, a few steps to warm up, then `--steps` timed ones; all take turns,
`--repeats` times. A step is zero_grad, forward, backward, SGD step; the figure is the median over all steps of rank 0,
in ms; `cpu_ms` is the CPU time of rank 0's threads per step, which other load on the machine disturbs less. Writes
benchmarks/results/steps.json and prints a Markdown table.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

NAMES = [
    "nocomm", "ddp", "torch fp16", "torch powersgd:4", "fp32", "fp16", "qsgd", "quantized:4", "efsignsgd", "topk:0.01",
    "topk:0.0625,value_bits=4", "powersgd:4", "powersgd:0.16667,bits=4", "acpsgd:4",
]  # fmt: skip
"""No communication, DDP and torch's own hooks; then configurations for `gw.attach`."""


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    rows: list[dict] = []
    for link in arguments.links.split(","):
        for model in arguments.models.split(","):
            cell = collect(__file__, [*sys.argv[1:], "--model", model], arguments.ranks, link)
            rows.append({"link": link, "ranks": arguments.ranks, "model": model, "ms": cell})
            print(row_text(rows[-1]), flush=True)
            save(arguments.save, rows=rows)
    print(f"\n{table(rows)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="100mbit,1gbit")
    parser.add_argument("--models", default="vgg16,lstm,gpt")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="configurations, by name, with semicolons between them")
    parser.add_argument("--save", default="steps.json")
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict:
    import torch.distributed as dist

    from gradwire.lab.workloads import Synthetic

    rank = dist.get_rank()
    task = Synthetic(model=arguments.model)
    names = arguments.only.split(";") if arguments.only else NAMES
    times: dict[str, list[float]] = {name: [] for name in names}
    split: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.repeats):
        for name in names:
            seconds, stats = measure(task, name, arguments, rank)
            times[name] += seconds
            split.setdefault(name, []).append(stats)
            dist.barrier()
    return {
        name: {"median": 1e3 * statistics.median(seconds), "iqr": 1e3 * iqr(seconds)} | medians(split[name])
        for name, seconds in times.items()
    }


def measure(task, name: str, arguments: argparse.Namespace, rank: int) -> tuple[list[float], dict[str, float]]:
    import torch
    import torch.distributed as dist

    model = task.build_model(seed=0)
    batches = task.batches(rank, dist.get_world_size(), seed=0)
    forward, stats, end = setup(name)(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds = []
    before, cpu = None, 0.0
    for step in range(4 + arguments.steps):
        inputs, targets = next(batches)
        if step == 4:
            before, cpu = stats(), time.process_time()
        start = time.perf_counter()
        optimizer.zero_grad()
        task.loss(forward(inputs), targets).backward()
        optimizer.step()
        if step >= 4:
            seconds.append(time.perf_counter() - start)
    after, cpu = stats(), 1e3 * (time.process_time() - cpu) / arguments.steps
    end()
    if after is None:
        return seconds, {"cpu_ms": cpu}
    spans = {
        f"{part}_ms": 1e3 * (getattr(after, f"{part}_s") - getattr(before, f"{part}_s")) / arguments.steps
        for part in ("encode", "wire", "decode", "wait")
    }
    return seconds, spans | {"cpu_ms": cpu, "wire_bytes": (after.wire_bytes - before.wire_bytes) / arguments.steps}


def setup(name: str) -> Callable:
    """A function from a model to (forward, stats, detach)."""
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    import gradwire as gw

    def nothing():
        return None

    def hooked(state, hook, **options):
        def make(model):
            ddp = DDP(model, **options)
            ddp.register_comm_hook(state() if state else None, hook)
            return ddp, nothing, nothing

        return make

    def nocomm(model):
        ddp, *rest = hooked(None, debugging_hooks.noop_hook)(model)
        ddp.broadcast_buffers = False  # BatchNorm's, before each step
        return ddp, *rest

    def attached(model):
        ddp = DDP(model)
        handle = gw.attach(ddp, name)
        return ddp, handle.stats, handle.detach

    others = {
        "nocomm": nocomm,
        "ddp": lambda model: (DDP(model), nothing, nothing),
        "torch fp16": hooked(None, default_hooks.fp16_compress_hook),
        "torch powersgd:4": hooked(
            lambda: powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2),
            powerSGD_hook.powerSGD_hook,
            bucket_cap_mb=1000,
        ),
    }
    return others.get(name, attached)


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def iqr(values: list[float]) -> float:
    if len(values) == 1:
        return 0.0
    quarters = statistics.quantiles(values, n=4)
    return quarters[2] - quarters[0]


def row_text(row: dict) -> str:
    cells = "  ".join(f"{name} {cell['median']:.0f}±{cell['iqr']:.0f}" for name, cell in row["ms"].items())
    return f"{row['link']} x{row['ranks']} {row['model']}: {cells}"


def table(rows: list[dict]) -> str:
    """Medians, and how many times as long they are as without communication."""
    cells: list[list[str]] = []
    for row in rows:
        alone = row["ms"]["nocomm"]["median"] if "nocomm" in row["ms"] else None
        medians = [each["median"] for each in row["ms"].values()]
        own = [f"{ms:.0f}" + (f" ({ms / alone:.2f}x)" if alone else "") for ms in medians]
        cells.append([row["link"], str(row["ranks"]), row["model"], *own])
    return markdown(("link", "ranks", "model", *rows[0]["ms"]), cells)


if __name__ == "__main__":
    main()
