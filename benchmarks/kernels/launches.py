"""Kernel launches of a group's step on a GPU, counted on a pretended one, for one rank of eight.

    python benchmarks/kernels/launches.py [WORD ...]

The group has the 16 slots of a layer of BERT-base, 95 wide instead of 768: no number is computed, so the count does not
depend on the width. As in BERT, the last rank's part is shorter than the others'. Every torch operation counts as one
launch, although `topk` and `sort` are several kernels, and so does every Triton kernel, which does not run; views count
as none. Bytes, per element of the group, are those of the tensors that operations take and return; a Triton kernel's
tensors count once each, whether it reads, writes or does both. With words: only rows whose name has all of them, and
the launches of each line of code. Prints a Markdown table.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
os.environ["TRITON_INTERPRET"] = "1"

import torch

from benchmarks.shared.tables import markdown
from tests.support.cases import CASES, Case
from tests.support.harness import draw, slots_of
from tests.support.lane import Lane
from tests.support.pretend_cuda import GPU, pretended_cuda
from tests.support.triton_lane import with_triton

WORLD, WIDTH, WARM, STEPS = 8, 95, 1, 3
"""WARM steps are not counted; of the next STEPS, the longest period of any row, the largest count is taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    words = parser.parse_args().words
    rows = [counted(case, bool(words)) for case in CASES if all(word in str(case) for word in words)]
    table = [[row["row"], f"{row['launches']:.1f}", f"{row['bytes']:.0f}", str(row["waits"])] for row in rows]
    print(markdown(["row", "launches a group", "bytes an element", "waits and pageable copies"], table))


def counted(case: Case, by_line: bool) -> dict:
    """A row: launches and bytes of a rank, and how often the host waits or copies memory that is not pinned."""
    slots, most, moved, waits = slots_of(layer()), 0.0, 0.0, 0
    elements = sum(slot.numel for slot in slots)
    with pretended_cuda() as gpu, torch.no_grad(), with_triton(gpu, computes=False):
        lane = Lane(case, slots, GPU, gpu, WORLD)
        for number in range(WARM + STEPS):
            gpu.forget()
            lane.step(draw(slots, WORLD, number))
            if number >= WARM:
                most, waits = max(most, gpu.kernels.total() / WORLD), waits + (gpu.syncs + gpu.pageable).total()
                moved = max(moved, gpu.moved / WORLD / elements)
        for line, number in gpu.lines.most_common() if by_line else ():
            print(f"{number / WORLD:6.1f} {line}")
    return {"row": str(case), "launches": most, "bytes": moved, "waits": waits}


def layer() -> dict[str, torch.Tensor]:
    """The parameters of one layer of BERT."""
    inner = 4 * WIDTH
    shapes = dict.fromkeys(("query", "key", "value", "output"), (WIDTH, WIDTH))
    shapes |= {"intermediate": (inner, WIDTH), "dense": (WIDTH, inner)}
    weights = {f"{name}.weight": torch.empty(shape) for name, shape in shapes.items()}
    biases = {f"{name}.bias": torch.empty(shape[0]) for name, shape in shapes.items()}
    norms = {f"norm{i}.{kind}": torch.empty(WIDTH) for i in (1, 2) for kind in ("weight", "bias")}
    return weights | biases | norms


if __name__ == "__main__":
    main()
