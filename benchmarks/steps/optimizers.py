"""Step times of DeMo and Dion, whose exchanges are updates, beside AdamW and Muon over plain DDP.

    python benchmarks/steps/optimizers.py                          # 2 hosts, three links; 17 minutes
    python benchmarks/steps/optimizers.py --links 1gbit --ranks 4

The configurations of `benchmarks/losses/updates.py`, each with its own optimizers. A GPT of 3.5 M parameters in
float32, 2 windows of 128 random tokens a rank and step. Each configuration gets a fresh model, a few steps to warm up,
then `--steps` timed ones; all take turns, `--repeats` times, beside AdamW that exchanges nothing. Times are of rank 0,
bytes what its interface sent. Writes benchmarks/results/optimizers.json and prints a Markdown table for each link.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.losses.updates import NAMES, ways
from benchmarks.shared.provenance import save
from benchmarks.shared.ranks import as_rank, collect, sent_bytes
from benchmarks.shared.tables import markdown, middle

SAVED = "optimizers.json"
WARM_UP = 4
ALONE = "alone"
"""AdamW without any exchange."""
DDP = "adamw", "muon"
"""The optimizers of whole gradients, under plain DDP."""
SHOWN = NAMES | {ALONE: "AdamW, no communication"}


def main() -> None:
    arguments = parse()
    as_rank(lambda: rank_job(arguments))
    rows = list[dict[str, Any]]()
    for link in arguments.links.split(","):
        rows.append({"link": link, "ranks": arguments.ranks} | collect(__file__, sys.argv[1:], arguments.ranks, link))
        save(SAVED, rows=rows)
        table = markdown(COLUMNS, list(lines(rows[-1])))
        print(f"\n{link}, {rows[-1]['parameters']:,} parameters\n\n{table}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", default="1gbit,100mbit,20mbit")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=4)
    return parser.parse_args()


def rank_job(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of every configuration the milliseconds of the steps of each turn, and the bytes of a step."""
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in SHOWN}
    parameters = 0
    for _ in range(arguments.repeats):
        for name, own in turns.items():
            parameters, found = turn(name, arguments.steps)
            own.append(found)
    ways = {name: {key: [each[key] for each in own] for key in ("ms", "bytes")} for name, own in turns.items()}
    return {"parameters": parameters, "ways": ways}


def turn(name: str, steps: int) -> tuple[int, dict[str, Any]]:
    """The number of parameters, and of one turn the milliseconds of every step and the bytes of one."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    import gradwire as gw
    from benchmarks.losses.size.model import GPT, Size
    from benchmarks.losses.updates import BASE

    size = Size(depth=4, width=256, heads=4, context=128, batch=2, words=1024)
    torch.manual_seed(0)
    model = GPT(size.words, size)
    way = ways()[name if name != ALONE else "adamw"]
    optimizers = way.optimizers(model, BASE)
    network = model if name == ALONE else DistributedDataParallel(model)
    handle = None if name in (ALONE, *DDP) else gw.attach(network, way.compressor, **way.options)
    windows = torch.Generator().manual_seed(dist.get_rank())
    ms, before = list[float](), 0
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            dist.barrier()
            before = sent_bytes()
        start = time.perf_counter()
        tokens = torch.randint(size.words, (size.batch, size.context + 1), generator=windows)
        logits = network(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        ms.append(1e3 * (time.perf_counter() - start))
    sent = (sent_bytes() - before) / steps
    if handle:
        handle.detach()
    dist.barrier()
    return sum(each.numel() for each in model.parameters()), {"ms": ms[WARM_UP:], "bytes": sent}


COLUMNS = ["", "ms a step", "AdamW over DDP is so many times longer", "MB sent"]


def lines(row: dict[str, Any]) -> Iterator[list[str]]:
    """A line for each configuration: medians, and the least and the largest of a turn."""
    for name, way in row["ways"].items():
        ratios = "" if name == "adamw" else middle(speeds(row, name))
        yield [SHOWN[name], middle(map(median, way["ms"]), ".0f"), ratios, f"{megabytes(row, name):.2f}"]


def megabytes(row: dict[str, Any], name: str) -> float:
    """Sent by rank 0 in a step."""
    return median(row["ways"][name]["bytes"]) / 1e6


def milliseconds(row: dict[str, Any], name: str) -> float:
    """The median over turns of a step of this configuration."""
    return median(map(median, row["ways"][name]["ms"]))


def speeds(row: dict[str, Any], name: str) -> list[float]:
    """How many times as fast as AdamW over DDP its steps are, turn by turn."""
    pairs = zip(row["ways"]["adamw"]["ms"], row["ways"][name]["ms"], strict=True)
    return [median(dense) / median(own) for dense, own in pairs]


def speed(row: dict[str, Any], name: str) -> float:
    """The median of `speeds`."""
    return median(speeds(row, name))


if __name__ == "__main__":
    main()
