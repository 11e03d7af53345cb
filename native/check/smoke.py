"""Asks an installed Gradwire which kernels it uses, and has them do what they do at every step.

python smoke.py native|reference
"""

import sys
from functools import partial

import torch

from gradwire.ops import native
from gradwire.ops.backend import NATIVE, REFERENCE
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, nearest


def main() -> None:
    expected = sys.argv[1] == "native"
    assert native.available() == expected, native.reason()
    ops = NATIVE if expected else REFERENCE
    gradient, next = torch.linspace(-1, 1, 10_000), torch.empty(10_000)
    blocks = partial(ops.add_quantise, keep=True, seeds=[0])
    for layout, add, decode in (
        (Entries(10_000, 100), ops.add_select, ops.sum_entries),
        (Blocks((9_000, 1_000), nearest(4)), blocks, ops.sum_blocks),
    ):
        payload, sent = torch.empty(layout.nbytes, dtype=torch.uint8), torch.empty(10_000)
        assert add(next, None, gradient, 1.0, 0.5, [layout], payload[None])
        decode(payload[None, None], sent, [layout])
        assert torch.allclose(sent + next, gradient / 2)
    print(f"torch {torch.__version__}: {native.reason()}")


if __name__ == "__main__":
    main()
