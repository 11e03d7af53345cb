"""Arguments that the library would read or write wrongly are refused, each by its name."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.ops import native
from gradwire.ops.backend import NATIVE
from gradwire.ops.entries import EliasFano, Entries
from gradwire.ops.formats import Blocks, Code, nearest
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.noise import Seed
from gradwire.ops.reference.products import COLUMNS, ROWS
from tests.support.kernel_cases import needs_library

N = 128
ENTRIES, BLOCKS, PLACES = Entries(N, 16, 4), Blocks((100, 28), nearest(4)), EliasFano(N, 16)


def vector(n: int = N) -> Tensor:
    return torch.zeros(n)


def payload(nbytes: int, *ranks: int) -> Tensor:
    return torch.zeros(*ranks, nbytes, dtype=torch.uint8)


def factors(length: int) -> Tensor:
    return torch.zeros(2, 3, length)


def adding() -> dict[str, Any]:
    return {"next": vector(), "old": vector(), "gradient": vector(), "decay": 1.0, "weight": 0.5}


def indices() -> Tensor:
    return torch.arange(8)


CALLS: dict[str, dict[str, Any]] = {
    "add_in": adding(),
    "add_select": adding() | {"layouts": [ENTRIES], "payload": payload(ENTRIES.nbytes, 1)},
    "add_quantise": adding() | {"layouts": [BLOCKS], "payload": payload(BLOCKS.nbytes, 1), "keep": True, "seeds": [0]},
    "round_stochastically": {"x": vector(), "out": vector().bfloat16(), "seed": Seed(0)},
    "sum_blocks": {"rows": payload(BLOCKS.nbytes, 1, 2), "out": vector(), "layouts": [BLOCKS]},
    "sum_entries": {"rows": payload(ENTRIES.nbytes, 1, 2), "out": vector(), "layouts": [ENTRIES]},
    "pack_entries": {
        "payload": payload(ENTRIES.nbytes, 1), "layout": ENTRIES, "indices": indices()[None], "values": vector(8)[None],
    },
    "pack_indices": {"payload": payload(PLACES.nbytes, 1), "layout": PLACES, "indices": indices()[None]},
    "unpack_entries": {"payload": payload(ENTRIES.nbytes, 1), "layout": ENTRIES},
    "unpack_indices": {"payload": payload(PLACES.nbytes, 1), "layout": PLACES},
    "pack_signs": {"x": vector(), "codes": payload(N // 8)},
    "unpack_signs": {"codes": payload(N // 8), "out": vector()},
    "top_k": {"x": vector(), "k": 3},
    "above": {"x": vector(), "bound": 1.0, "most": 3},
    "top_k_rows": {"matrix": vector().view(2, -1), "k": 3},
    "project_rows": {"matrices": vector(40).view(2, 4, 5), "q": factors(5), "out": factors(4)},
    "project_columns": {"matrices": vector(40).view(2, 4, 5), "p": factors(4), "out": factors(5)},
    "multiply_batch": {"out": vector(40).view(2, 4, 5), "p": factors(4), "q": factors(5)},
}  # fmt: skip
"""Of each function arguments that it takes."""
SETS_LENGTHS = {
    ("add_in", "next"), ("pack_entries", "indices"), ("pack_indices", "indices"), ("pack_signs", "x"),
    ("unpack_signs", "out"), ("top_k", "x"), ("above", "x"), ("top_k_rows", "matrix"), ("project_rows", "matrices"),
    ("project_columns", "matrices"), ("multiply_batch", "out"), ("round_stochastically", "x"),
}  # fmt: skip
"""Arguments that say how long the others are."""
SAME_SIZE = {
    torch.float32: torch.int32, torch.uint8: torch.int8, torch.int64: torch.float64, torch.bfloat16: torch.float16,
}  # fmt: skip


def spoiled(function: str, name: str, good: Tensor) -> Iterator[tuple[str, Any]]:
    """The same argument as the library cannot take it."""
    yield "of another type", good.to(torch.int32 if good.dtype == torch.uint8 else torch.float64)
    yield "of another type of this size", good.view(SAME_SIZE[good.dtype])
    if (function, name) != ("pack_entries", "values"):  # which are copied
        yield "negated", torch._neg_view(good)
        yield "with gaps", torch.stack([good, good], -1)[..., 0]
        yield "of one element, seen again and again", good.flatten()[:1].expand(good.shape)
    yield "on another device", good.to("meta")
    if (function, name) not in SETS_LENGTHS:
        yield "too short", good[..., :-1].clone()


WRONG = [
    pytest.param(function, name, bad, id=f"{function} of {name} {how}")
    for function, arguments in CALLS.items()
    for name, good in arguments.items()
    if isinstance(good, Tensor)
    for how, bad in spoiled(function, name, good)
]


@needs_library
@pytest.mark.parametrize("function", CALLS)
def test_what_is_right_is_taken(function: str):
    call(function, CALLS[function])


@needs_library
@pytest.mark.parametrize(("function", "name", "bad"), WRONG)
def test_a_wrong_argument_is_named(function: str, name: str, bad: Any):
    arguments = CALLS[function] | {name: bad}
    with pytest.raises(ValueError, match=rf"\b{name}(put)?\b"):  # "out" may be the output
        call(function, arguments)


BATCHES = {
    "project_rows": partial(native.products.project_batch, side=ROWS),
    "project_columns": partial(native.products.project_batch, side=COLUMNS),
    "multiply_batch": lambda out, p, q: native.products.multiply_batch([out], p, q, subtract=True),
}


def call(function: str, arguments: dict[str, Any]) -> None:
    modules = (native.adding, native.decoding, native.bits, native.selecting, native.rounding)
    found = BATCHES.get(function) or next(getattr(each, function) for each in modules if hasattr(each, function))
    positional = [value for name, value in arguments.items() if name not in ("keep", "seeds")]
    found(*positional, **{name: arguments[name] for name in ("keep", "seeds") if name in arguments})


def test_the_line_says_what_was_given_and_what_is_wanted():
    with pytest.raises(
        ValueError,
        match=r"^payload is \(8,\) of torch.float32 on cpu with strides \(2,\); the native kernels take at least "
        r"\d+ bytes of torch.uint8, dense on the CPU$",
    ):
        NATIVE.unpack_entries(torch.zeros(16)[None, ::2], ENTRIES)


ODD: dict[str, tuple[str, Callable[[], Any]]] = {
    "an index of n": ("indices", lambda: pack_indices(torch.tensor([3, N]))),
    "an index below 0": ("indices", lambda: pack_indices(torch.tensor([-1]))),
    "more indices than k": ("indices", lambda: pack_indices(torch.arange(17))),
    "more of a row than it has": ("k=5", lambda: native.selecting.top_k_rows(torch.zeros(2, 4), 5)),
    "blocks of 5 bits": ("no layout", lambda: sum_blocks(Blocks((8,), Code("nearest", 5, 1, 8)))),
    "lengths below 0": ("no layout", lambda: sum_blocks(Blocks((16, -8), nearest(4)))),
    "room for none": ("no layout", lambda: NATIVE.unpack_indices(payload(99, 1), EliasFano(8, 0))),
    "values of 16 bits": ("no layout", lambda: NATIVE.unpack_entries(payload(99, 1), Entries(8, 1, 16))),  # pyright: ignore
}


def pack_indices(indices: Tensor) -> None:
    NATIVE.pack_indices(payload(PLACES.nbytes, 1), PLACES, indices[None])


def sum_blocks(layout: Blocks) -> None:
    NATIVE.sum_blocks(payload(99, 1, 1), vector(8), [layout])


@needs_library
@pytest.mark.parametrize("what", ODD)
def test_numbers_that_would_lead_out_of_bounds_are_refused(what: str):
    named, call = ODD[what]
    with pytest.raises(ValueError, match=named):
        call()


@needs_library
def test_a_codec_of_a_user_hears_which_argument_is_wrong():
    x, layout = LazySum.of(vector()), Entries(N, 16)
    with pytest.raises(ValueError, match="payload is"):
        x.select([layout], payload(layout.nbytes - 4, 1))
    with pytest.raises(ValueError, match="next is"):
        gw.LazySum(torch.zeros(N, dtype=torch.bfloat16), None, vector()).total()
    with pytest.raises(ValueError, match="gradient is"):
        gw.LazySum(vector(), None, torch.zeros(2 * N)[::2]).total()
