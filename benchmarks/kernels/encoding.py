"""CPU time to encode a group of 8 MB, beside TopK at 1 %: native kernels and torch's, in turns.

    python benchmarks/kernels/encoding.py                # a minute

One thread, one rank, no network: 8 matrices (512, 512) of noise, with their residuals. Encoding is everything that a
rank computes before its last message goes out: the gradient added to the residual, and for PowerSGD the decoding
between its two rounds. The figures are medians over all turns of CPU milliseconds, which other load on the machine
disturbs less than the clock. Writes benchmarks/results/encoding.json and prints a Markdown table.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[2]))

import torch

import gradwire as gw
from benchmarks.shared.provenance import save
from benchmarks.shared.tables import markdown
from benchmarks.steps.collectives import exchange_of
from gradwire.ops.backend import in_use
from gradwire.ops.gradients import Gradients
from gradwire.plans import default_communicator
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.slots import Slot
from gradwire.transports import SizeRecorder

COMPRESSORS = {
    "TopK 1 %": gw.TopK(0.01), "4 bits": gw.Quantized(4), "top-k 1/16 in 10 bits": gw.TopK(1 / 16, value_bits=4),
    "PowerSGD 1/12 in 4 bits": gw.PowerSGD(1 / 12, bits=4), "PowerSGD 1/6 in 4 bits": gw.PowerSGD(1 / 6, bits=4),
    "PowerSGD 1/3 in 4 bits": gw.PowerSGD(1 / 3, bits=4),
}  # fmt: skip
KERNELS = {"torch": "reference", "native": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps({"kernels": in_use(), "ms": measured(arguments.repeats)}))
        return
    kernels: dict[str, str] = {}
    all_ms = {name: {way: [] for way in COMPRESSORS} for name in KERNELS}
    for name in list(KERNELS) * arguments.turns:
        found = elsewhere(KERNELS[name], arguments.repeats)
        kernels[name] = found["kernels"]
        for way, ms in found["ms"].items():
            all_ms[name][way] += ms
    ms = {name: {way: median(own) for way, own in ways.items()} for name, ways in all_ms.items()}
    save("encoding.json", kernels=kernels, ms=ms)
    print(markdown(COLUMNS, [cells(name, ms) for name in COMPRESSORS]))


def elsewhere(kernels: str, repeats: int) -> dict:
    """The measurement of another process that uses these kernels."""
    argv = [sys.executable, __file__, "--here", "--repeats", str(repeats)]
    environment = os.environ | {"GRADWIRE_KERNELS": kernels, "OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout)


def measured(repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each repeat; all compressors in turn, after two turns to warm up."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    slots = [Slot.of(f"weight {i}", torch.empty(512, 512)) for i in range(8)]
    exchanges = {
        name: exchange_of(compressor, default_communicator(compressor), slots, SizeRecorder(1))
        for name, compressor in COMPRESSORS.items()
    }
    found: dict[str, list[float]] = {name: [] for name in COMPRESSORS}
    for turn in range(repeats + 2):
        gradient = torch.randn(8 * 512 * 512, generator=generator)
        for name, exchange in exchanges.items():
            ms = encoded(exchange, gradient.clone(), turn)
            if turn >= 2:
                found[name].append(ms)
    return found


def encoded(exchange: GroupExchange, gradient: torch.Tensor, step: int) -> float:
    """Milliseconds until the last message goes out."""
    start = last = time.process_time()
    for op in exchange.run(GroupInput(Gradients.of_vector(exchange.stored.layout, gradient)), step):
        if op is not None:
            last = time.process_time()
            SizeRecorder(1).start(op)
    exchange.commit()
    return 1e3 * (last - start)


COLUMNS = ("", *(column for kernels in KERNELS for column in (f"{kernels} ms", "of TopK 1 %")))


def cells(name: str, ms: dict[str, dict[str, float]]) -> list[str]:
    """A compressor's row of the table."""
    times = [(own[name], own[name] / own["TopK 1 %"]) for own in ms.values()]
    return [name, *(cell for own, share in times for cell in (f"{own:.1f}", f"{share:.2f}"))]


if __name__ == "__main__":
    main()
