"""How many launches a group's step takes on a GPU, one rank of eight, counted on one that is pretended.

    python benchmarks/kernels/launches.py [WORD ...]

A group of 16 slots, as a layer of BERT-base has and its 12 groups are, but 95 wide instead of 768: nothing is asked of
the numbers, so the count does not depend on the size; as there, the last rank's part is shorter than the others. Every
operation of torch counts as one, although `topk` and `sort` are several kernels, as does every Triton kernel, which is
not run; views count for nothing. Bytes, of an element of the group, are of what operations are given and what they
return; a Triton kernel's tensors count once each, whether they are read, written or both. With words, only rows that
contain them all, and which lines launch what. Prints a Markdown table.
"""

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
"""Steps before those that count, and of these, as many as the longest period has, the one that launches most."""


def main() -> None:
    words = sys.argv[1:]
    rows = [counted(case, bool(words)) for case in CASES if all(word in str(case) for word in words)]
    table = [[row["row"], f"{row['launches']:.1f}", f"{row['bytes']:.0f}", str(row["waits"])] for row in rows]
    print(markdown(["row", "launches a group", "bytes an element", "waits and pageable copies"], table))


def counted(case: Case, by_line: bool) -> dict:
    """Per rank, and how often the host waits or copies memory that is not pinned."""
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
