"""Streaming DiLoCo on a slow link: is the wire ever idle, and does training ever wait?

    python benchmarks/steps/streaming.py             # 2 hosts, 10mbit; 3 minutes
    python benchmarks/steps/streaming.py --ranks 4   # on two cores: ranks drift, and wait for the slowest
    python benchmarks/steps/streaming.py --bits 32   # all-reduced in a ring, in which ranks wait for each other

Byte-level GPT (width 256, 2 layers) in two fragments of a block each, 1 x 64 bytes a rank and step, AdamW. A few rounds
measure the bytes of a fragment and the inner step of the slowest rank. A fragment is then sent every so many steps as
the link needs for one, and 4 % more (`--slack`), and applied twice as many steps later (`--ahead`), while the next one
travels. Then whole rounds are timed. Idle is the part of the link's capacity that a host's interface did not use.
Waited is the time for which the training thread waited for a mean. Outer is the extra time at the ends of steps that
received or sent, over those of other steps, waits included.
Writes benchmarks/results/streaming.json and prints a Markdown table.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.losses.local_steps import inner_optimizer
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect, sent_bytes
from benchmarks.shared.tables import markdown

FRAGMENTS, WARM_UP = 2, 2
LEAST = 3
"""Steps from fragment to fragment, at least: one sends, one applies, and one does neither."""


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    found = collect(__file__, sys.argv[1:], arguments.ranks, arguments.link)
    save("streaming.json", link=arguments.link, ranks=arguments.ranks, bits=arguments.bits, **found)
    print(f"\n{markdown(COLUMNS, cells(found['turns']))}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="10mbit")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bits", type=int, default=4, help="of the messages: 32, or 2 to 8")
    parser.add_argument("--slack", type=float, default=1.04)
    parser.add_argument(
        "--ahead", type=float, default=2.0, help="a fragment is applied after the time of so many; 1 to 2"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    period = torch.tensor(LEAST)
    for _ in range(2):  # twice, for steps take longer while messages travel
        probe = rounds(arguments, int(period), arguments.rounds)
        period = torch.tensor(max(LEAST, math.ceil(arguments.slack * probe["wire_s"] / probe["step_s"])))
        dist.all_reduce(period, dist.ReduceOp.MIN)
    return {"turns": [rounds(arguments, int(period), arguments.rounds) for _ in range(arguments.repeats)]}


def rounds(arguments: argparse.Namespace, period: int, count: int) -> dict[str, Any]:
    """Times `count` rounds after two to warm up; bytes and seconds are rank 0's."""
    import torch.distributed as dist

    import gradwire as gw
    from gradwire.lab.network.link import Link
    from gradwire.lab.workloads import LanguageModel

    task = LanguageModel(width=256, layers=2, batch=1, max_bytes=1_000_000)
    model = task.build_model(0)
    codec = gw.FP32() if arguments.bits == 32 else gw.Quantized(arguments.bits)
    every, delay = FRAGMENTS * period, round(arguments.ahead * period)
    schedule = {"inner_steps": every, "fragments": FRAGMENTS, "delay": delay}
    optimizer = gw.LocalSteps(inner_optimizer(model), model, codec, **schedule)
    finish, waits = optimizer.handle._runtime.finish, list[float]()

    def timed_finish(*point: Any) -> None:
        began = time.perf_counter()
        finish(*point)
        waits.append(time.perf_counter() - began)

    optimizer.handle._runtime.finish = timed_finish  # in which a round waits
    batches = task.batches(dist.get_rank(), arguments.ranks, 0)
    taken: list[tuple[bool, float, float]] = []  # if a fragment is sent or applied, seconds of the step and of its end
    sent, start = 0, 0.0
    for step in range(1, (WARM_UP + count) * every + 1):
        if step == WARM_UP * every + 1:
            sent, start = sent_bytes(), time.perf_counter()
            waits.clear()
        began = time.perf_counter()
        optimizer.zero_grad()
        task.training_loss(model, next(batches)).backward()
        computed = time.perf_counter()
        optimizer.step()
        ended = time.perf_counter()
        taken.append((step % period == 0 or (step - delay) % period == 0, ended - began, ended - computed))
    seconds, sent = time.perf_counter() - start, sent_bytes() - sent
    optimizer.handle.detach()
    wire_s, timed = busy_s(Link.parse(arguments.link), sent), taken[WARM_UP * every :]
    inner = median(end for outer, _, end in timed if not outer)
    return {
        "period": period,
        "delay": delay,
        "step_s": mean(whole for outer, whole, _ in timed if not outer),
        "wire_s": wire_s / (count * FRAGMENTS),
        "idle": 1 - wire_s / seconds,
        "waited": sum(waits) / seconds,
        "outer": sum(max(0.0, end - inner) for outer, _, end in timed if outer) / seconds,
    }


def busy_s(link: Any, sent: int) -> float:
    """Seconds that a link takes for bytes as the kernel counts them, which are fewer than those on the wire."""
    return sent / link.counted_bytes_per_second


COLUMNS = ("", "sent every", "delay, steps", "ms a step", "wire idle", "training waited", "outer steps")


def cells(turns: list[dict[str, Any]]) -> list[list[str]]:
    """A line for each turn, and their mean."""
    lines = [(f"turn {number}", turn) for number, turn in enumerate(turns, 1)]
    lines.append(("mean", {key: mean(turn[key] for turn in turns) for key in turns[0]}))
    return [
        [name, *(f"{own[key]:.0f}" for key in ("period", "delay")), f"{1e3 * own['step_s']:.0f}"]
        + [f"{own[share]:.1%}" for share in ("idle", "waited", "outer")]
        for name, own in lines
    ]


if __name__ == "__main__":
    main()
