"""The collectives for sparse gradients on the emulated network: measured seconds beside those of their formulas.

    python benchmarks/steps/collectives.py                    # 2, 4 and 8 ranks, 0.1 %, 1 % and 10 % of 4 M elements
    python benchmarks/steps/collectives.py --link 1gbit --elements 25000000 --ranks 8

Each rank reduces a random gradient once with every communicator and records its collectives. Then it runs these alone,
again and again, without selecting, because the ranks of one machine would wait for each other's cores. A time is the
slowest rank's, the median over the repeats.

The formulas are `Communicator.wire`: a number of messages in sequence, and of bytes. The cost of a message is measured
first, with a few bytes in each kind of collective, and that of a byte with an all-reduce of a fiftieth of a second of
the link. "Choice" is the communicator with the lowest formula, "fastest" the one with the lowest time. Their means
differ (docs/algorithms.md): a scheduler chooses among those that the user accepts. Writes
benchmarks/results/collectives.json and prints Markdown tables.
"""

import argparse
import statistics
import sys
import time
from itertools import groupby
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect
from benchmarks.shared.tables import markdown

DENSITIES = [0.001, 0.01, 0.1]
COMMUNICATORS = [
    gw.AllGather(), gw.ScatterReduce(), gw.SplitGather(), gw.Exclusive(), gw.LeaderIndices(), gw.GlobalTopK(),
    gw.OkTopk(),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--save", default="collectives.json")
    options = parser.parse_args()
    if min(options.ranks) < 2:
        parser.error("one rank sends nothing: give --ranks 2 or more")
    as_rank(lambda: rank_job(options))
    rows = [row for ranks in options.ranks for row in collect(__file__, sys.argv[1:], ranks, options.link)]
    result = {"link": options.link, "rows": rows, "choices": choices(rows)}
    print_tables(result)
    save(options.save, **result)


def rank_job(options: argparse.Namespace) -> list[dict]:
    from gradwire.lab.network.link import Link

    transport = gw.ProcessGroup.own()
    prices = calibrate(transport, Link.parse(options.link), options.repeats)
    pairings = [(1.0, gw.FP32(), gw.AllReduce())]
    pairings += [(density, gw.TopK(density), c) for density in DENSITIES for c in COMMUNICATORS]
    return [measure(pairing, options, transport, prices) for pairing in pairings]


def calibrate(transport: gw.ProcessGroup, link, repeats: int) -> tuple[float, float]:
    """The seconds of a message, and the bytes per second of the link."""
    import torch

    from gradwire import wire
    from gradwire.collective import AllToAll, Broadcast, Gather, Message, Sum

    world = transport.world
    few, table, other = Message.plain(torch.zeros(2)), *(Message.plain(torch.zeros(world, 2)) for _ in range(2))
    small = [Sum(few), Gather(few, table), AllToAll(other, table), Broadcast(few, 0)]
    messages = wire.all_reduce(8, world).messages + 2 * (world - 1) + wire.depth(world)
    large = torch.zeros(max(1 << 14, link.bytes_per_second // 50 // 4))
    seconds = [replayed(ops, transport, 3 * repeats) for ops in (small, small[:1], [Sum(Message.plain(large))])]
    rate = wire.all_reduce(large.nbytes, world).wire_bytes / max(1e-9, seconds[2] - seconds[1])
    return seconds[0] / messages, rate


def measure(pairing: tuple, options: argparse.Namespace, transport: gw.ProcessGroup, prices: tuple) -> dict:
    from gradwire.slots import Layout

    density, compressor, communicator = pairing
    wire = communicator.wire(compressor, Layout.vector(options.elements), transport.world)
    ops = collectives(compressor, communicator, options.elements, transport)
    return {
        "ranks": transport.world, "elements": options.elements, "density": density,
        "communicator": type(communicator).__name__, "messages": wire.messages, "wire_bytes": wire.wire_bytes,
        "predicted_s": wire.seconds(*prices), "measured_s": replayed(ops, transport, options.repeats),
        "message_s": prices[0], "bytes_per_second": prices[1],
    }  # fmt: skip


def collectives(compressor, communicator, elements: int, transport: gw.ProcessGroup) -> list:
    """The collectives that one step asks the transport for."""
    import torch

    from gradwire.ops.gradients import Gradients
    from gradwire.runtime.exchanges.group_input import GroupInput
    from gradwire.slots import Layout

    exchange = exchange_of(compressor, communicator, list(Layout.vector(elements).slots), transport)
    gradient = torch.randn(elements, generator=torch.Generator().manual_seed(transport.rank))
    ops = []
    for op in exchange.run(GroupInput(Gradients(exchange.stored.split, [gradient])), 0):
        if op is not None:
            transport.run(op)
        ops.append(op)
    return ops


def exchange_of(compressor, communicator, slots: list, transport: gw.Transport):
    """The exchange of one group of all slots."""
    import torch

    from gradwire.plans import Group, default_memory
    from gradwire.runtime.exchanges import plan_exchanges

    group = Group(tuple(slot.name for slot in slots), compressor, default_memory(compressor), communicator)
    return plan_exchanges.exchange_of(group, slots, gw.Mesh.of(transport), torch.device("cpu"))


def replayed(ops: list, transport: gw.ProcessGroup, repeats: int) -> float:
    """Seconds that the collectives take one after another, on the slowest rank."""
    import torch
    import torch.distributed as dist

    times = []
    for _ in range(repeats + 1):
        for op in ops:
            op.receive.whole.zero_()  # a sum that is summed again and again would overflow
        dist.barrier()
        start = time.perf_counter()
        for op in ops:
            transport.run(op)
        times.append(time.perf_counter() - start)
    slowest = torch.tensor(times[1:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist())


def choices(rows: list[dict]) -> list[dict]:
    """The choice by formula and the fastest of each number of ranks and density; dense all-reduce is a candidate."""
    dense = {row["ranks"]: row for row in rows if row["density"] == 1}
    cells = [row for row in rows if row["density"] != 1]
    found = []
    for (ranks, density), group in groupby(cells, key=lambda row: (row["ranks"], row["density"])):
        candidates = [*group, dense[ranks]]
        choice = min(candidates, key=lambda row: row["predicted_s"])
        fastest = min(candidates, key=lambda row: row["measured_s"])
        found.append({
            "ranks": ranks, "density": density, "choice": choice["communicator"], "fastest": fastest["communicator"],
            "slower_by": choice["measured_s"] / fastest["measured_s"] - 1,
        })  # fmt: skip
    return found


def print_tables(result: dict) -> None:
    rows = [
        [f"{row['ranks']}", f"{row['density']:.1%}", row["communicator"], f"{row['messages']}",
         f"{row['wire_bytes'] / 1e6:.3f}", f"{1e3 * row['predicted_s']:.2f}", f"{1e3 * row['measured_s']:.2f}",
         f"{row['measured_s'] / row['predicted_s']:.2f}"]
        for row in result["rows"]
    ]  # fmt: skip
    cells = [
        [f"{cell['ranks']}", f"{cell['density']:.1%}", cell["choice"], cell["fastest"], f"{cell['slower_by']:.1%}"]
        for cell in result["choices"]
    ]
    columns = "collective", "messages", "MB", "formula ms", "measured ms", "measured / formula"
    print(markdown(("ranks", "density", *columns), rows))
    print()
    print(markdown(("ranks", "density", "choice by formula", "fastest measured", "choice slower by"), cells))
    close = sum(cell["slower_by"] <= 0.05 for cell in result["choices"])
    print(f"\nThe choice is the fastest or within 5 % of it in {close} of {len(result['choices'])} cells.")


if __name__ == "__main__":
    main()
