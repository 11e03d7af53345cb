"""Asks an installed Gradwire which kernels it uses, and has them do what they do at every step.

python smoke.py native|reference
"""

import sys

import torch

from gradwire.ops import native, reference
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, nearest


def main() -> None:
    expected = sys.argv[1] == "native"
    assert native.available() == expected, native.reason()
    ops = native if expected else reference
    gradient, next = torch.linspace(-1, 1, 10_000), torch.empty(10_000)
    for layout, add in ((Entries(10_000, 100), ops.add_select), (Blocks((9_000, 1_000), nearest(4)), ops.add_quantise)):
        payload, sent = torch.empty(layout.nbytes, dtype=torch.uint8), torch.empty(10_000)
        more = {"keep": True} if isinstance(layout, Blocks) else {}
        assert add(next, None, gradient, 1.0, 0.5, layout, payload, **more)
        ops.decode_sum(payload[None], sent, layout)
        assert torch.allclose(sent + next, gradient / 2)
    print(f"torch {torch.__version__}: {native.reason()}")


if __name__ == "__main__":
    main()
