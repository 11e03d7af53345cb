"""Compiles the kernels for a GPU that is not there: python tests/compile_kernels.py 80. The interpreter takes more than
the compiler does."""

import os
import re
import subprocess
import sys
from tempfile import NamedTemporaryFile

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from gradwire.ops.triton import adding, codes, places, sums
from gradwire.ops.triton.tables import ELEMENTS

F, WORDS, ADDENDS = "*fp32", "*i32", {"HAS_OLD": True, "HAS_GRADIENT": True}
ADDING = {"next": F, "old": F, "gradient": "*bf16", "nonfinite": F, "decay": "fp32"}
TABLE = {"table": "*i64", "count": "i32"}
CODES = [(0, 4, 7, 64), (0, 3, 3, 64), (1, 8, 127, 1024), (2, 1, 1, 256), (3, 1, 1, 4096)]
"""Kind, bits, top and block."""


def compiled(kernel, arguments: dict[str, str], constants: dict[str, int], capability: int) -> None:
    """Prints the kernel's name, with what tells its builds apart, registers per thread and bytes that are spilled."""
    signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    places_of = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    made = triton.compile(ASTSource(kernel, signature, places_of), target=GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"]
    kind = "".join(f" {name.lower()} {constants[name]}" for name in ("KIND", "BITS", "LOW") if name in constants)
    print(f"{kernel.__name__}{kind}: {' '.join(map(str, usage(made.asm['ptx'], capability)))}")


def usage(ptx: str, capability: int) -> tuple[int, int]:
    """Registers per thread, and bytes that are spilled, as Triton's own assembler tells."""
    assembler = get_ptxas(capability).path
    with NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        architecture = f"sm_{capability}{'a' if capability >= 90 else ''}"
        command = [assembler, "-v", f"--gpu-name={architecture}", "-o", os.devnull, file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", told)))
    return int(re.findall(r"Used (\d+) registers", told)[0]), spilled


def main(capability: int) -> None:
    for scaled in (False, True):
        share = {"share": F if scaled else "fp32"}
        constants = {**ADDENDS, "SCALED": scaled, "SIZE": adding.SIZE}
        compiled(sums.add_kernel, ADDING | share | {"n": "i32"}, constants, capability)
        selecting = {"n": "i32", "magnitude": F, "places": WORDS, "words": "i32"}
        compiled(sums.measure_kernel, ADDING | share | selecting, constants, capability)
    compiled(sums.mask_kernel, {"x": F, "other": F, "n": "i32"}, {"SIZE": adding.SIZE}, capability)
    for kind, bits, top, width in CODES:
        code = {"KIND": kind, "BITS": bits, "TOP": top, "ROWS": max(1, ELEMENTS // width), "WIDTH": width}
        more = {"share": "fp32", "payloads": "*u8", "seed": "i32"}
        constants = {**ADDENDS, "SCALED": False, "KEEP": True, **code}
        compiled(codes.quantise_kernel, ADDING | TABLE | more, constants, capability)
        rows = {"out": F, "rows": "*u8", "stride": "i32", "ranks": "i32"}
        compiled(codes.dequantise_kernel, rows | TABLE, code, capability)
    entries = {"values": F, "upper": WORDS, "lower": WORDS, "stride": "i32"}
    more = {"indices": "*i64", "chosen": F, "apart": "i32", "m": "i32"}
    words = {"rows": WORDS, "stride": "i32", "ends": WORDS, "words": "i32"}
    for low in (0, 6):
        compiled(places.pack_kernel, entries | more, {"TAKE": True, "LOW": low, "SIZE": 1024}, capability)
        sums_of = words | {"out": F, "low_words": "i32", "k": "i32", "n": "i32", "ranks": "i32"}
        compiled(places.sum_kernel, sums_of, {"LOW": low, "SPAN": 1024, "SIZE": 64}, capability)
    compiled(places.ends_kernel, words, {"SIZE": 1024}, capability)


if __name__ == "__main__":
    main(int(sys.argv[1]))
