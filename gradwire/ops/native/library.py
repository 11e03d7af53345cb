"""The loaded library, or the reason why it cannot be used."""

import os
import threading
from ctypes import CDLL, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import gradwire.ops.native as package

ABI = 10
"""The number that `gw_abi()` of a library for this version returns: `GW_ABI` in native/gradwire.h."""

ISAS = {1: "baseline", 3: "avx2", 4: "avx512"}
"""Instruction sets, by number; the baseline is SSE2, NEON, or plain code."""

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "gw_abi": (c_int, ()),
    "gw_level": (c_int, ()),
    "gw_set_level": (c_int, (c_int,)),
    "gw_add_in": (c_int, (c_void_p, c_int64)),
    "gw_add_select": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "gw_add_quantise": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int)),
    "gw_select_room": (c_int64, (c_int64, c_int64)),
    "gw_top_k": (c_int64, (c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
    "gw_above": (c_int64, (c_void_p, c_int64, c_float, c_int64, c_void_p, c_void_p)),
    "gw_top_k_rows": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p)),
    "gw_decode_blocks": (None, (c_void_p, c_void_p, c_void_p, c_int64, c_void_p)),
    "gw_blocks_room": (c_int64, (c_int64,)),
    "gw_decode_entries": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "gw_entries_room": (c_int64, (c_int64,)),
    "gw_pack_entries": (None, (c_void_p, c_void_p, c_void_p, c_int64, c_void_p)),
    "gw_unpack_entries": (c_int64, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "gw_pack_signs": (None, (c_void_p, c_int64, c_int, c_void_p)),
    "gw_unpack_signs": (None, (c_void_p, c_int64, c_void_p)),
    "gw_round_stochastically": (None, (c_void_p, c_int64, c_void_p, c_void_p)),
    "gw_project_rows": (None, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "gw_project_columns": (None, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "gw_product": (None, (c_void_p, c_void_p, c_void_p, c_void_p, c_int)),
}

_kept = threading.local()


def available() -> bool:
    """Whether the library can be used."""
    return _find()[0] is not None


def reason() -> str:
    """The ISA in use, or the reason why the library is not in use."""
    return f"level {isa()}" if available() else _find()[1]


def isa() -> str:
    """The instruction set in use, one of `ISAS`."""
    return ISAS[library().gw_level()]


def set_isa(name: str) -> bool:
    """Switches to an instruction set, or to the machine's best, "best", where it lacks that one; returns whether it has
    it."""
    number = {known: number for number, known in ISAS.items()}.get(name, 0)
    return library().gw_set_level(number) == number or name == "best"


def library() -> CDLL:
    """The loaded library. Call it only where `available()`."""
    found, why = _find()
    assert found is not None, why
    return found


def scratch(nbytes: int) -> int:
    """The address of scratch memory of at least so many bytes, which this thread keeps for its next call."""
    kept = getattr(_kept, "bytes", None)
    if kept is None or len(kept) < nbytes:
        kept = _kept.bytes = np.empty(nbytes, np.uint8)
    return kept.ctypes.data


class _Library(CDLL):
    """A library that has the functions of `FUNCTIONS` alone: without their types ctypes cuts addresses short."""

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(f"{name} has no types: name them in FUNCTIONS of {__file__}")
        return super().__getattr__(name)


@cache
def _find() -> tuple[CDLL | None, str]:
    """The library, or None and the reason. Raises ValueError where GRADWIRE_KERNELS names a library that does not
    load."""
    # GRADWIRE_KERNELS chooses
    choice = os.environ.get("GRADWIRE_KERNELS", "")
    if choice == "reference":
        return None, "GRADWIRE_KERNELS=reference"
    if choice and not Path(choice).is_file():
        raise ValueError(f"GRADWIRE_KERNELS={choice} is no file; set it to reference, to a library, or not at all")
    # else the one that is installed
    files = [Path(choice)] if choice else _installed()
    if not files:
        return None, f"no library was built: {_unbuilt()}"
    try:
        return _load(files[0]), ""
    except (OSError, AttributeError) as error:
        why = f"the library does not load: {error}"
    except ValueError as error:
        why = str(error)
    if choice:
        raise ValueError(f"GRADWIRE_KERNELS={choice}: {why}; set it to reference, to a library, or not at all")
    return None, why


def _unbuilt() -> str:
    """Why there is no library."""
    checkout = Path(package.__file__).parents[3]
    if (checkout / "native" / "gradwire.h").is_file():
        return f"this is the checkout {checkout}, where none was built: make .venv/.dev does, with a C++ compiler"
    return "there was no C++ compiler, or this is the wheel for any platform"


def _installed() -> list[Path]:
    """The library files in this package, which has two folders in an editable install: that of the sources and that of
    the build."""
    return [file for folder in package.__path__ for file in Path(folder).glob("libgradwire.*")]


def _load(file: Path) -> CDLL:
    found = _Library(str(file.resolve()))  # a name without a slash would be looked for elsewhere
    if (abi := found.gw_abi()) != ABI:
        raise ValueError(f"the library has ABI {abi}, this version wants {ABI}: reinstall Gradwire (make .venv/.dev)")
    # types of all functions, so that a wrong call fails in Python
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
