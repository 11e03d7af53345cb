"""What all checks together cost a step: blocks of steps with and without them take turns in one job.

    python benchmarks/checks.py                                            # 2 ranks, 1gbit; 5 to 8 minutes
    python benchmarks/checks.py --link loopback --models small --steps 4 --repeats 1

Checked or not: `elastic=True`, whose message ends each step; the heartbeat, and the watch over store and ranks, every
second. `verify()` is timed by itself, and counts a hundredth, as it is called every 100 steps. Whether gradients are
finite is seen by the kernels as they add, and cannot be turned off.

Ratios are of medians of a block and of the one beside it; CPU time per step is by thread, the least of all blocks.
Writes benchmarks/results/checks.json and prints a table.
"""

import argparse
import statistics
import sys
import threading
import time

from before_after import task, timed_steps
from page import markdown, middle
from provenance import save
from ranks import as_rank, collect

EVERY = 100
COMPRESSORS = ("fp32", "powersgd", "topk")
NEVER_S = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--models", default="lstm,gpt")
    parser.add_argument("--only", default=",".join(COMPRESSORS))
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    parser.add_argument("--repeats", type=int, default=4, help="blocks with, and as many without")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.out:
        as_rank(given.out, lambda: job(given))
    rows = collect(__file__, sys.argv[1:], 2, given.link)
    print(markdown(("model", "compressor", "ratio", "with verify", "CPU ms by thread"), map(told, rows)))
    save("checks.json", link=given.link, every=EVERY, rows=rows)


def job(given: argparse.Namespace) -> list[dict]:
    """What rank 0 found, a row for each model and compressor."""
    rows = []
    for model in given.models.split(","):
        for name in given.only.split(","):
            blocks: dict[bool, list[dict]] = {False: [], True: []}
            for repeat in range(given.repeats):
                for checked in (False, True) if repeat % 2 else (True, False):
                    blocks[checked].append(block(model, name, checked, given.steps))
            rows.append(row(model, name, blocks))
    return rows


def block(name: str, compressor: str, checked: bool, steps: int) -> dict:
    """The median step in ms, CPU ms per step by thread, and of checked ones what a `verify()` takes in ms."""
    from torch.nn.parallel import DistributedDataParallel

    import gradwire as gw
    from gradwire.runtime import monitor

    monitor.PERIOD_S = 1.0 if checked else NEVER_S
    model, run = task(name)
    others = set(threading.enumerate())
    ddp = DistributedDataParallel(model)
    compressors = {"fp32": gw.FP32(), "powersgd": gw.PowerSGD(4), "topk": gw.TopK(0.01)}
    handle = gw.attach(ddp, compressors[compressor], elastic=checked)
    found = timed_steps(ddp, run, steps, others)
    verify = [timed(handle.verify) for _ in range(3)] if checked else [0.0]
    handle.detach()
    return {"ms": statistics.median(found["ms"]), "cpu_ms": found["cpu_ms"], "verify_ms": min(verify)}


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def row(model: str, compressor: str, blocks: dict[bool, list[dict]]) -> dict:
    pairs = [(one["ms"], other["ms"]) for one, other in zip(blocks[True], blocks[False], strict=True)]
    return {
        "model": model, "compressor": compressor, "ms": statistics.median(other for _, other in pairs),
        "ratios": [one / other for one, other in pairs],
        "verify_ms": statistics.median(each["verify_ms"] for each in blocks[True]),
        "cpu_ms": {"without": least_cpu(blocks[False]), "with": least_cpu(blocks[True])},
    }  # fmt: skip


def least_cpu(blocks: list[dict]) -> dict[str, float]:
    return {thread: min(each["cpu_ms"][thread] for each in blocks) for thread in blocks[0]["cpu_ms"]}


def told(row: dict) -> list[str]:
    """A row of the table."""
    share = row["verify_ms"] / EVERY / row["ms"]
    before, now = row["cpu_ms"]["without"], row["cpu_ms"]["with"]
    cpu = ", ".join(f"{thread} {before[thread]:.2f}→{now[thread]:.2f}" for thread in before)
    ratios = row["ratios"]
    return [row["model"], row["compressor"], middle(ratios, ".3f"), f"{statistics.median(ratios) + share:.3f}", cpu]


if __name__ == "__main__":
    main()
