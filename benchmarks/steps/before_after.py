"""A step of this code beside one of another commit, in turns in one run.

    pip install --no-deps --target ../before git+file://$PWD@COMMIT
    python benchmarks/steps/before_after.py --before ../before                       # 2 ranks, 100mbit and 1gbit
    python benchmarks/steps/before_after.py --before ../before --links loopback --models small --steps 20

`small` are 1,000 Linear(16, 16), where the cost of each parameter is most of a step. Every repeat starts ranks with the
other commit's package, then with this one's; each runs all configurations, a few steps to warm up and `--steps` timed.
The figures: the median of all steps of rank 0 in ms, and the CPU time per step of its training thread, of Gradwire's
thread and of all others (gloo's, autograd's), the least of the repeats, which other load disturbs least. Writes
benchmarks/results/before_after.json and prints Markdown tables.
"""

import argparse
import statistics
import sys
import threading
import time
from importlib.machinery import PathFinder
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import ROOT, save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown, middle

CONFIGURATIONS = ["nocomm", "ddp", "fp32", "topk", "powersgd", "acpsgd", "qsgd", "efsignsgd"]
WARM_UP = 4
COLUMNS = (
    "link", "model", "configuration", "before ms", "now ms", "now / before", "trains: CPU ms", "Gradwire: CPU ms",
    "others: CPU ms",
)  # fmt: skip


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    trees = {"before": Path(arguments.before).resolve(), "now": ROOT}
    rows: list[dict] = []
    for link in arguments.links.split(","):
        for model in arguments.models.split(","):
            cells = {tree: [] for tree in trees}
            for repeat in range(arguments.repeats):
                for tree in list(trees)[:: 1 if repeat % 2 else -1]:
                    own = [*sys.argv[1:], "--model", model, "--tree", str(trees[tree])]
                    cells[tree].append(collect(__file__, own, arguments.ranks, link))
            rows += [row(link, model, arguments.ranks, name, cells) for name in cells["now"][0]]
            print(f"{link} {model}: done", flush=True)
            save(arguments.save, rows=rows)
    print(f"\n{markdown(COLUMNS, map(cells_of, rows))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="the folder with the other commit's package")
    parser.add_argument("--links", default="100mbit,1gbit")
    parser.add_argument("--models", default="vgg16,lstm,gpt")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--only", default=",".join(CONFIGURATIONS))
    parser.add_argument("--save", default="before_after.json")
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    parser.add_argument("--tree", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def import_from(tree: Path) -> None:
    """Imports the package from `tree`, even where another is installed or comes first in the ranks' import path."""
    if tree != ROOT:
        sys.meta_path.insert(0, PathFinder)
        sys.path.insert(0, str(tree))
    import gradwire

    assert Path(gradwire.__file__).is_relative_to(tree), f"{gradwire.__file__} is not in {tree}"


def rank_job(arguments: argparse.Namespace) -> dict:
    import_from(Path(arguments.tree))
    return {name: measure(name, arguments) for name in arguments.only.split(",")}


def measure(name: str, arguments: argparse.Namespace) -> dict:
    """One configuration's steps."""
    import torch.distributed as dist

    model, run = task(arguments.model)
    ddp, end = wrapped(name, model)
    found = timed_steps(ddp, run, arguments.steps)
    end()
    dist.barrier()
    return found


def timed_steps(ddp, run, steps: int) -> dict:
    """Steps in ms after some to warm up, and CPU ms per step by thread."""
    import torch

    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    ms, own, cpu = [], [], {}
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            own = [thread for thread in threading.enumerate() if thread.name == "gradwire"]
            cpu = cpu_ms(own)
        start = time.perf_counter()
        optimizer.zero_grad()
        run(ddp).backward()
        optimizer.step()
        ms.append(1e3 * (time.perf_counter() - start))
    cpu = {thread: (after - cpu[thread]) / steps for thread, after in cpu_ms(own).items()}
    return {"ms": ms[WARM_UP:], "cpu_ms": cpu}


def task(model: str):
    """The model, and a function that runs it forward on the next batch and returns the loss."""
    import torch
    import torch.distributed as dist

    from gradwire.lab.workloads import Synthetic

    if model == "small":
        x = torch.randn(8, 16)
        return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(1000))), lambda ddp: ddp(x).sum()
    workload = Synthetic(model=model)
    batches = workload.batches(dist.get_rank(), dist.get_world_size(), seed=0)

    def run(ddp):
        inputs, targets = next(batches)
        return workload.loss(ddp(inputs), targets)

    return workload.build_model(seed=0), run


def wrapped(name: str, model):
    """The model under DDP with this configuration, and a function that detaches it."""
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
    from torch.nn.parallel import DistributedDataParallel as DDP

    import gradwire as gw

    compressors = {
        "fp32": gw.FP32(), "topk": gw.TopK(0.01), "powersgd": gw.PowerSGD(4), "acpsgd": gw.ACPSGD(4),
        "qsgd": gw.QSGD(), "efsignsgd": gw.EFSignSGD(),
    }  # fmt: skip
    ddp = DDP(model)
    if name in compressors:
        return ddp, gw.attach(ddp, compressors[name]).detach
    if name == "nocomm":
        ddp.register_comm_hook(None, noop_hook)
        ddp.broadcast_buffers = False
    return ddp, lambda: None


def cpu_ms(own: list[threading.Thread]) -> dict[str, float]:
    """CPU time so far of the calling thread, of Gradwire's `own`, and of all others."""
    mine = 1e3 * time.thread_time()
    theirs = sum(int(Path(f"/proc/self/task/{each.native_id}/schedstat").read_text().split()[0]) for each in own) / 1e6
    return {"trains": mine, "gradwire": theirs, "others": 1e3 * time.process_time() - mine - theirs}


def row(link: str, model: str, ranks: int, name: str, cells: dict[str, list[dict]]) -> dict:
    found: dict = {"link": link, "model": model, "ranks": ranks, "configuration": name}
    for tree, runs in cells.items():
        medians = [statistics.median(run[name]["ms"]) for run in runs]
        found[tree] = {
            "ms": statistics.median(ms for run in runs for ms in run[name]["ms"]),
            "spread": max(medians) - min(medians),
            "cpu_ms": {thread: min(run[name]["cpu_ms"][thread] for run in runs) for thread in runs[0][name]["cpu_ms"]},
        }
    ratios = [statistics.median(n[name]["ms"]) / statistics.median(b[name]["ms"]) for b, n in pairs(cells)]
    return found | {"ratio": statistics.median(ratios), "ratios": sorted(ratios)}


def pairs(cells: dict[str, list[dict]]) -> list[tuple[dict, dict]]:
    return list(zip(cells["before"], cells["now"], strict=True))


def cells_of(each: dict) -> list[str]:
    """A row of the table."""
    before, now = each["before"], each["now"]
    return [
        each["link"], each["model"], each["configuration"],
        *(f"{tree['ms']:.1f} ± {tree['spread']:.1f}" for tree in (before, now)),
        middle(each["ratios"]),
        *(f"{before['cpu_ms'][thread]:.1f} → {ms:.1f}" for thread, ms in now["cpu_ms"].items()),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
