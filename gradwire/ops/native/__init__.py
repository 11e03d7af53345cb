"""The functions of `gradwire.ops.reference` in C++, for tensors on a CPU: one pass each, without Python's lock.

Every level of instructions gives the same bits as the reference, but for the scales of `sign` and `one bit` codes,
whose sums it adds up in another order. Call these only where `available()`.
"""

from gradwire.ops.native import adding, bits, decoding, low_rank, selecting
from gradwire.ops.native.library import LEVELS, available, level, reason, set_level

__all__ = [
    "LEVELS", "adding", "available", "bits", "decoding", "level", "low_rank", "reason", "selecting", "set_level",
]  # fmt: skip
