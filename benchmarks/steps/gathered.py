"""Codes and low rank by AllGather or by ScatterReduce: from how many ranks on is which one faster?

    python benchmarks/steps/gathered.py                       # 2, 4 and 8 ranks, 100 Mbit/s
    python benchmarks/steps/gathered.py --link 1gbit --ranks 4

A group of one layer of a GPT, 3.1 million parameters. Each rank reduces random gradients, and measures how long its own
thread computes. The collectives of that reduction then run alone, again and again, without computing, because the ranks
of one machine would wait for each other's cores. A rank with a core of its own takes the sum of both. Seconds are the
slowest rank's, medians over the repeats. Writes benchmarks/results/gathered.json and prints a Markdown table.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown
from benchmarks.steps.collectives import exchange_of, replayed
from gradwire.notation import read
from gradwire.ops.gradients import Gradients
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.slots import Slot

COMPRESSORS = (
    "quantized:8", "quantized:4", "powersgd:0.3333,bits=4", "powersgd:0.16667,bits=4", "topk:0.0625,value_bits=4",
)  # fmt: skip
COMMUNICATORS = (gw.AllGather(), gw.ScatterReduce())
WIDTH = 512
LAYER = {"attention": (3 * WIDTH, WIDTH), "projection": (WIDTH, WIDTH), "up": (4 * WIDTH, WIDTH),
         "down": (WIDTH, 4 * WIDTH), "bias": (9 * WIDTH,), "norms": (4 * WIDTH,)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    as_rank(lambda: job(arguments.repeats))
    rows = [row for ranks in arguments.ranks for row in collect(__file__, sys.argv[1:], ranks, arguments.link)]
    columns = ["compressor", "ranks", *(f"{type(one).__name__}, ms (of these computing)" for one in COMMUNICATORS)]
    print(markdown(columns, cells(rows)))
    save("gathered.json", link=arguments.link, rows=rows)


def job(repeats: int) -> list[dict[str, Any]]:
    transport = gw.ProcessGroup.own()
    return [
        {"ranks": transport.world, "compressor": text, "communicator": type(communicator).__name__}
        | measured(text, communicator, transport, repeats)
        for text in COMPRESSORS
        for communicator in COMMUNICATORS
    ]


def measured(text: str, communicator: gw.Communicator, transport: gw.ProcessGroup, repeats: int) -> dict[str, float]:
    slots = [Slot.of(name, torch.empty(shape)) for name, shape in LAYER.items()]
    exchange = exchange_of(read(text)[0].compressor, communicator, slots, transport)
    computing = []
    for step in range(repeats + 1):
        ops, seconds = reduced(exchange, slots, transport, step)
        computing.append(seconds)
    own = torch.tensor(statistics.median(computing[1:]), dtype=torch.float64)
    dist.all_reduce(own, dist.ReduceOp.MAX)
    return {"computing_s": own.item(), "wire_s": replayed(ops, transport, repeats)}


def reduced(exchange: GroupExchange, slots: list[Slot], transport: gw.ProcessGroup, step: int) -> tuple[list, float]:
    """The collectives of a step, and the seconds that this thread computed between them."""
    generator = torch.Generator().manual_seed(step * transport.world + transport.rank)
    gradients = [torch.randn(slot.shape, generator=generator) for slot in slots]
    ops, seconds = [], -time.thread_time()
    for op in exchange.run(GroupInput(Gradients(exchange.stored.split, gradients)), step):
        seconds += time.thread_time()
        if op is not None:
            transport.run(op)
            ops.append(op)
        seconds -= time.thread_time()
    exchange.commit()
    return ops, seconds + time.thread_time()


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each compressor and number of ranks."""
    by: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        both = f"{1e3 * (row['wire_s'] + row['computing_s']):.0f} ({1e3 * row['computing_s']:.0f})"
        by.setdefault((row["compressor"], str(row["ranks"])), []).append(both)
    return [[*key, *own] for key, own in sorted(by.items())]


if __name__ == "__main__":
    main()
