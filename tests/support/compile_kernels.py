"""Compiles the kernels for a GPU that is not there: `python tests/support/compile_kernels.py 80`. The interpreter
takes more than the compiler does."""

import os
import re
import subprocess
import sys
from tempfile import NamedTemporaryFile

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from gradwire.ops.formats import nearest, one_bit, qsgd, shared_exponent, sign
from gradwire.ops.slices import Slices
from gradwire.ops.triton import (
    adding,
    casts,
    codes,
    decoding,
    entries,
    factors,
    hashing,
    largest,
    levels,
    orthogonal,
    places,
    products,
    rounding,
    selecting,
    slices,
    slicing,
    sums,
    words,
)
from gradwire.ops.triton.decoding import size_of
from gradwire.ops.triton.tables import constants_of, shape_of

F, WORDS, ADDENDS = "*fp32", "*i32", {"HAS_OLD": True, "HAS_GRADIENT": True}
ADDING = {"next": F, "old": F, "gradient": "*bf16", "nonfinite": F, "decay": "fp32"}
TABLE = {"table": "*i64", "count": "i32"}
LISTS = {"x": F, "state": WORDS, "keys": WORDS, "places": "*i16", "counts": WORDS, "n": "i32", "k": "i32"}
READS = {"TILES": selecting.LANES // 64, "SLOTS": 64}
LONG = {
    casts.cast_kernel: ("n", "length", "stride"), sums.add_kernel: ("n",), sums.mask_kernel: ("n",),
    rounding.round_kernel: ("n",),
}  # fmt: skip
"""Kernels for more than 2^31 elements, and the numbers that are beyond it then."""
WITH_ONES = []
"""Kernels that were built for numbers that are 1."""
CODES = [nearest(4), nearest(3), qsgd(), shared_exponent(), sign(), one_bit()]


def compiled(kernel, arguments: dict[str, str], constants: dict[str, int], capability: int, warps: int = 4) -> None:
    """Prints the kernel's name, with what tells its builds apart, registers per thread and bytes that are spilled. The
    same of its build for numbers beyond 2^31, and once of that for numbers that are 1, which Triton makes constants."""
    built(kernel, arguments, constants, capability, warps)
    if kernel in LONG:
        built(kernel, arguments | dict.fromkeys(LONG[kernel], "i64"), constants, capability, warps)
    numbers = [name for name in kernel.arg_names if arguments.get(name) == "i32" and name != "salt"]
    if numbers and kernel not in WITH_ONES:
        WITH_ONES.append(kernel)
        rest = {name: kind for name, kind in arguments.items() if name not in numbers}
        built(kernel, rest, constants | dict.fromkeys(numbers, 1), capability, warps)


def built(kernel, arguments: dict[str, str], constants: dict[str, int], capability: int, warps: int) -> None:
    signature = {name: arguments.get(name, "constexpr") for name in kernel.arg_names}
    places_of = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source, target = ASTSource(kernel, signature, places_of), GPUTarget("cuda", capability, 32)
    made = triton.compile(source, target=target, options={"num_warps": warps})
    assert made.asm["cubin"]
    # Triton 3.6 dropped a pointer that a loop moved on; other loops may be split
    before, after = (re.findall(r"iter_args\((.*?)\) ->", made.asm[stage]) for stage in ("ttir", "ttgir"))
    if len(before) == len(after):
        assert all(b.count(",") <= a.count(",") for b, a in zip(before, after, strict=True)), kernel.__name__
    telling = ("KIND", "BITS", "LOW", "RANK", "NUMBER", "AXIS", "LENGTH")
    kind = "".join(f" {name.lower()} {constants[name]}" for name in telling if name in constants)
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
    for part in (sums_and_selection, in_slices, codes_and_casts, indices_and_values, low_rank, short_words):
        part(capability)


def sums_and_selection(capability: int) -> None:
    for scaled in (False, True):
        weight = {"weight": F if scaled else "fp32"}
        constants = {**ADDENDS, "SCALED": scaled, "SIZE": adding.SIZE}
        for kind in (F, "*bf16"):
            both = {"old": kind, "gradient": kind}
            compiled(sums.add_kernel, ADDING | weight | both | {"n": "i32"}, constants, capability)
        constants, more = {**ADDENDS, "SCALED": scaled}, {"zeros": WORDS, "words": "i32"}
        compiled(largest.add_list_kernel, ADDING | weight | LISTS | more, constants, capability)
        more, constants = {"step": "i32", "rank": "i32"}, constants | {"SAMPLE": selecting.SAMPLE}
        compiled(largest.sample_kernel, ADDING | weight | LISTS | more, constants, capability, selecting.WARPS)
    more = {"sizes": "*i64", "ends": "*i64", "indices": "*i64"}
    for kernel in (largest.list_kernel, largest.chosen_kernel, largest.write_kernel):
        compiled(kernel, LISTS | more, {} if kernel is largest.list_kernel else READS, capability)
    for number in range(3):
        compiled(largest.digits_kernel, LISTS, {"NUMBER": number, **READS}, capability)
    compiled(sums.mask_kernel, {"x": F, "other": F, "n": "i32"}, {"SIZE": adding.SIZE}, capability)


def in_slices(capability: int) -> None:
    moving = {"x": F, "values": F, "indices": "*i16", "table": "*i64"}
    for axis, length, kept in ((1, 768, 8), (1, 4608, 46), (0, 3072, 31), (0, 30522, 305)):
        tile = slicing.tile_of(Slices(0, 768, length, kept, axis))
        compiled(slices.select_slices_kernel, moving, {**tile.constants, "MOVE": True}, capability, tile.warps)
    strides = {"values_stride": "i32", "long_stride": "i32", "short_stride": "i32", "longs": "i32", "ranks": "i32"}
    fields = {"out": F, "values": F, "long": WORDS, "short": "*i16", "table": "*i64"}
    compiled(slices.add_slices_kernel, fields | strides, {"SIZE": slicing.ADDED}, capability)


def codes_and_casts(capability: int) -> None:
    for code in CODES:
        each, (rows, width, warps) = constants_of(code), shape_of(code)
        arguments = {"weight": "fp32", "table": "*i64", "payloads": "*u8", "word": "*i64", "salt": "i32"}
        constants = {**ADDENDS, "SCALED": False, "KEEP": True, **each, "ROWS": rows, "WIDTH": width}
        compiled(codes.quantise_kernel, ADDING | arguments, constants, capability, warps)
        arguments = {"out": F, "rows": "*u8", "stride": "i32", "ranks": "i32", "table": "*i64"}
        constants = {**each, "SCALE_BYTES": code.scale_bytes, "SIZE": size_of(code), "AHEAD": decoding.AHEAD}
        compiled(codes.dequantise_kernel, arguments, constants, capability, decoding.WARPS)
    drawing = {"x": F, "out": "*bf16", "word": "*i64", "salt": "i32", "n": "i32"}
    compiled(rounding.round_kernel, drawing, {"SIZE": rounding.SIZE}, capability)
    numbers = {"x": F, "n": "i32", "length": "i32", "stride": "i32", "limit": "fp32"}
    for kind in ("*fp16", "*bf16"):
        compiled(casts.cast_kernel, numbers | {"rows": kind}, {"KEEP": True, "SIZE": casts.SIZE}, capability)


def indices_and_values(capability: int) -> None:
    payloads = {"payloads": WORDS, "stride": "i32", "low_at": "i32", "values_at": "i32"}
    chosen = {"indices": "*i64", "chosen": F, "source_stride": "i32", "m": "i32", "n": "i32"}
    rows = {"rows": WORDS, "levels": F, "stride": "i32", "ends": WORDS, "upper_at": "i32", "words": "i32"}
    rows |= {"low_words": "i32", "k": "i32", "n": "i32", "starts": WORDS, "counts": WORDS, "spans": "i32"}
    for low, bits in ((0, 32), (6, 32), (6, 4)):
        widths = {"BITS": bits, "LOW": low}
        found = {"indices": "*i64", "found": F, "steps": "i32"}
        compiled(places.unpack_kernel, rows | found, {**widths, "SIZE": entries.SIZE}, capability)
        sums_of = {**widths, **entries.spans_of(low)}
        compiled(places.sum_kernel, rows | {"out": F, "ranks": "i32"}, sums_of, capability)
        constants = {"TAKE": True, "VALUES": True, "LOW": low, "SIZE": entries.SIZE}
        compiled(places.pack_kernel, payloads | chosen, constants, capability)
    more = {"upper_at": "i32", "sent": F, "filled": WORDS, "starts": WORDS, "levels": F}
    constants = {"TAKE": True, "LOW": 6, "SIZE": entries.TOGETHER}
    compiled(levels.pack_levels_kernel, payloads | chosen | more, constants, capability)
    compiled(places.words_kernel, rows, {"SIZE": entries.SIZE}, capability)
    compiled(places.ends_kernel, rows, {"SPAN": 256, "SIZE": entries.SIZE}, capability)


def low_rank(capability: int) -> None:
    thin = {"factors": F, "before": F, "largest": F, "table": "*i64", "count": "i32"}
    compiled(factors.renew_kernel, thin, {"SIZE": factors.SIZE}, capability)
    compiled(orthogonal.small_kernel, thin, {"RANK": 4, "SIZE": 256}, capability)
    factored = {"matrices": F, "p": F, "q": F} | TABLE
    for yes in (False, True):
        constants = {"UNIT": 4, "HEIGHT": products.PRODUCT_TILE[0], "WIDTH": products.PRODUCT_TILE[1]}
        compiled(products.product_kernel, factored, constants | {"SUBTRACT": yes}, capability)
    for rank in (4, products.THIN):
        for kernel, (height, width) in zip(
            (products.project_rows_kernel, products.project_columns_kernel), products.THIN_TILES, strict=True
        ):
            height = height // rank if kernel is products.project_rows_kernel else height
            compiled(kernel, factored, {"UNIT": 4, "RANK": rank, "HEIGHT": height, "WIDTH": width}, capability)
    for rank in (16, factors.MOST):
        constants = {"RANK": rank, "SIZE": orthogonal.ELEMENTS // rank}
        compiled(orthogonal.orthonormal_kernel, thin, constants, capability, 8)
        for side, (height, width) in enumerate(products.TILES):
            constants = {"UNIT": 4, "RANK": rank, "HEIGHT": height, "WIDTH": width, "TO_ROWS": side == 0}
            compiled(products.project_kernel, factored, constants, capability)


def short_words(capability: int) -> None:
    short = {"codes": "*u8", "words": "*i64", "count": "i32", "rows": "i32", "stride": "i32", "k": "i32"}
    drawing = {"out": "*fp64", "word": "*i64", "salt": "i32", "n": "i32"}
    compiled(hashing.draw_kernel, drawing, {"SIZE": hashing.SIZE}, capability)
    for kernel in (words.pack_words_kernel, words.unpack_words_kernel):
        compiled(kernel, short | {"nbytes": "i32"}, {"BITS": 12, "SIZE": words.SIZE}, capability)


if __name__ == "__main__":
    main(int(sys.argv[1]))
