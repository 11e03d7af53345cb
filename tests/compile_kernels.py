"""Compiles the kernels for a GPU that is not there: python tests/compile_kernels.py 80. The interpreter takes more than
the compiler does."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradwire.ops.triton import codes, places, sums

F, ADDENDS = "*fp32", {"HAS_OLD": True, "HAS_GRADIENT": True}
ADDING = {"next": F, "old": F, "gradient": "*bf16", "finite": "*i32", "decay": "fp32"}
TABLE = {"table": "*i64", "count": "i32"}
CODES = [(0, 4, 7, 64, "*i16"), (0, 3, 3, 64, "*i16"), (1, 8, 127, 1024, F), (2, 1, 1, 256, F), (3, 1, 1, 4096, F)]
"""Kind, bits, top, block, and what scales are kept as."""


def compiled(kernel, arguments: dict[str, str], constants: dict[str, int], capability: int) -> None:
    signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    places_of = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    made = triton.compile(ASTSource(kernel, signature, places_of), target=GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"]


def main(capability: int) -> None:
    for scaled in (False, True):
        share = {"share": F if scaled else "fp32"}
        constants = {**ADDENDS, "SCALED": scaled, "SIZE": 4096}
        compiled(sums.add_kernel, ADDING | share | {"n": "i32"}, constants, capability)
    for kind, bits, top, width, scales in CODES:
        code = {"KIND": kind, "BITS": bits, "TOP": top, "ROWS": 4096 // width, "WIDTH": width}
        more = {"share": "fp32", "scales": scales, "codes": "*u8", "seed": "i32"}
        constants = {**ADDENDS, "SCALED": False, "KEEP": True, **code}
        compiled(codes.quantise_kernel, ADDING | TABLE | more, constants, capability)
        rows = {"out": F, "rows": "*u8", "stride": "i32", "codes_at": "i32"}
        compiled(codes.dequantise_kernel, rows | TABLE, {"RANKS": 8, **code}, capability)
    entries, more = {"values": F, "upper": "*i32", "lower": "*i32"}, {"indices": "*i64", "chosen": F, "m": "i32"}
    words = {"words": "i32", "low_words": "i32", "k": "i32", "n": "i32"}
    for low in (0, 6):
        compiled(places.pack_kernel, entries | more, {"LOW": low, "SIZE": 1024}, capability)
        sums_of = entries | words | {"out": F, "ends": "*i32"}
        compiled(places.scatter_kernel, sums_of, {"LOW": low, "SIZE": 128}, capability)
    counting = {"counts": "*i32", "rows": "*i32", "stride": "i32", "words": "i32"}
    compiled(places.count_kernel, counting, {"SIZE": 1024}, capability)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    print("compiled")
