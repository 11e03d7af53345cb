"""The cost of all checks of a step: blocks of steps with and without them take turns in one job.

    python benchmarks/steps/checks.py                                            # 2 ranks, 1gbit; 6 minutes
    python benchmarks/steps/checks.py --link loopback --models small --blocks 4

A block has 5 steps, of which the first is not counted, with or without the message that ends each step of
`elastic=True`. The message costs both CPU and wire, so the figure is wall time: the mean difference of neighbouring
blocks, and twice its standard error. The heartbeat and the watch over store and ranks go on in both, once a second:
their thread's CPU time is added whole, as if it stopped training. So is a hundredth of a `verify()`, which is called
every 100 steps. The kernels check whether gradients are finite while they add; that cannot be turned off.

Writes benchmarks/results/checks.json and prints a table.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from benchmarks.steps.before_after import task

EVERY, STEPS, WARM_UP = 100, 5, 10
COMPRESSORS = ("fp32", "powersgd", "topk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--models", default="lstm,gpt")
    parser.add_argument("--only", default=",".join(COMPRESSORS))
    parser.add_argument("--blocks", type=int, default=50, help="with the message, and as many without it")
    given = parser.parse_args()
    if given.blocks < 2:
        parser.error("an error is that of several blocks: give --blocks 2 or more")
    as_rank(lambda: job(given))
    rows = collect(__file__, sys.argv[1:], 2, given.link)
    print(markdown(COLUMNS, map(cells, rows)))
    save("checks.json", link=given.link, every=EVERY, rows=rows)


def job(given: argparse.Namespace) -> list[dict]:
    """A row for each model and compressor."""
    return [
        measured(model, compressor, given.blocks)
        for model in given.models.split(",")
        for compressor in given.only.split(",")
    ]


def measured(model: str, compressor: str, blocks: int) -> dict:
    """Milliseconds: the median step without the message, the message's cost and twice its standard error, the watch's
    CPU time in a step, and a `verify()`."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import gradwire as gw

    module, run = task(model)
    ddp = DistributedDataParallel(module)
    handle = gw.attach(ddp, compressor, elastic=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        run(ddp).backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    means: dict[bool, list[float]] = {True: [], False: []}
    began, watched_ms = time.perf_counter(), watch_ms()
    for number in range(blocks):
        for checked in (True, False) if number % 2 else (False, True):
            handle._runtime._steps.elastic = checked  # as if the job had been attached so: the worker rests
            means[checked].append(statistics.mean([timed(step) for _ in range(STEPS)][1:]))
    watch = (watch_ms() - watched_ms) / (1e3 * (time.perf_counter() - began))
    verify_ms = min(timed(handle.verify) for _ in range(3))
    handle.detach()
    adds = [one - other for one, other in zip(means[True], means[False], strict=True)]
    ms = statistics.median(means[False])
    return {
        "model": model, "compressor": compressor, "ms": ms, "adds_ms": statistics.mean(adds),
        "error_ms": 2 * statistics.stdev(adds) / len(adds) ** 0.5, "watch_ms": watch * ms, "verify_ms": verify_ms,
    }  # fmt: skip


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def watch_ms() -> float:
    """CPU time so far of the thread that sends heartbeats and watches the ranks."""
    (thread,) = [each for each in threading.enumerate() if each.name == "gradwire-monitor"]
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e6


COLUMNS = ("model", "compressor", "ms a step", "message", "watch", "verify", "all")


def cells(row: dict) -> list[str]:
    """A row of the table: shares of a step."""
    parts = [row["adds_ms"], row["watch_ms"], row["verify_ms"] / EVERY]
    message, watch, verify = (f"{part / row['ms']:+.2%}" for part in parts)
    error = f" ± {row['error_ms'] / row['ms']:.2%}"
    return [row["model"], row["compressor"], f"{row['ms']:.0f}", message + error, watch, verify, f"{total(row):+.2%}"]


def total(row: dict) -> float:
    """The cost of all checks over that of a step."""
    return (row["adds_ms"] + row["watch_ms"] + row["verify_ms"] / EVERY) / row["ms"]


if __name__ == "__main__":
    main()
