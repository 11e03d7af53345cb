"""The functions of `gradwire.ops.reference` in C++, for tensors on a CPU: one pass each, without Python's lock.

Every ISA (instruction set) gives the same bits as all others, and as the reference, but for the scales of `sign` and
`one bit` codes and thin products, whose sums are added in another order. Call these only where `available()`.
"""

from gradwire.ops.native import adding, bits, decoding, products, rounding, selecting
from gradwire.ops.native.library import ISAS, available, isa, reason, set_isa

__all__ = [
    "ISAS", "adding", "available", "bits", "decoding", "isa", "products", "reason", "rounding",
    "selecting", "set_isa",
]  # fmt: skip
