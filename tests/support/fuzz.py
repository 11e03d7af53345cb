"""What reads things from outside, on whatever bytes: it raises ValueError, or what it has read holds.

`python -m tests.support.fuzz TARGET [SECONDS]` has atheris look for bytes that break this; test_fuzz.py tries some in
seconds.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from inspect import isclass, isfunction, unwrap
from types import FunctionType

import torch
from torch import Tensor

from gradwire import checkpoint
from gradwire.communicators import AllGather, OkTopk
from gradwire.compressors import QSGD, Interleaved, TopK
from gradwire.memories import Residual
from gradwire.ops.backend import REFERENCE
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, nearest, one_bit, qsgd, shared_exponent, sign
from gradwire.plans import Group, Plan
from gradwire.slots import Slot
from gradwire.text_tensors import letters, text_of

SLOTS = [Slot.of(name, torch.empty(shape)) for name, shape in (("a", (3, 4)), ("b", (5,)))]
PLAN = Plan(
    (
        Group(("a",), TopK(0.1), Residual(), OkTopk()),
        Group(("b",), Interleaved(TopK(0.05), QSGD()), Residual(), AllGather()),
    )
)
CODES = (nearest(4), nearest(3), qsgd(), shared_exponent(), sign(), one_bit())
WORDS = (
    "null",
    "1e999",
    "NaN",
    "-1",
    "true",
    "[]",
    "{}",
    '"shared/"',
    '""',
    "[" * 3000,
    '{"name": "TopK"}',
    "1" * 5000,
)


class Bytes:
    """What a fuzzer's bytes stand for; zeros where none are left."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, count: int) -> bytes:
        """The next ones."""
        taken, self._data = self._data[:count], self._data[count:]
        return taken.ljust(count, b"\0")

    def below(self, end: int) -> int:
        """A number, 0 or more."""
        return int.from_bytes(self.take(3), "little") % end

    def edited(self, text: str) -> str:
        """The text with up to four of its parts replaced, by bytes or by words of JSON."""
        for _ in range(self.below(5)):
            at, length = self.below(len(text) + 1), self.below(20)
            word = self.below(2 * len(WORDS))
            new = WORDS[word] if word < len(WORDS) else self.take(self.below(9)).decode("latin-1")
            text = text[:at] + new + text[at + length :]
        return text

    def tensor(self) -> Tensor:
        """Of any type, a few numbers."""
        kinds = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float64, torch.bfloat16)
        dtype, shape = kinds[self.below(len(kinds))], [self.below(6) for _ in range(self.below(4))]
        raw = torch.tensor(list(self.take(16)), dtype=torch.uint8)
        value = (raw & 1).bool()[0] if dtype == torch.bool else raw.view(dtype)[0]
        return value.expand(shape).clone()


def plan(data: bytes) -> None:
    """`Plan.from_json`."""
    with suppress(ValueError):
        read = Plan.from_json(Bytes(data).edited(PLAN.to_json()))
        assert Plan.from_json(read.to_json()) == read
        read.check(SLOTS)


@cache
def _states() -> list[checkpoint.StateDict]:
    kept = {"a": {"residual": torch.ones(3, 4), "shared/q": torch.ones(4, 2)}, "b": {"group/threshold": torch.ones(())}}
    own = [checkpoint.pack(kept, {}, 7, checkpoint.About(rank, 2, PLAN.to_json())) for rank in (0, 1)]
    return [*own, checkpoint.gather(own)]


def state(data: bytes) -> None:
    """`unpack` and what is done with what it read."""
    drawn = Bytes(data)
    own = dict(_states()[drawn.below(3)])
    if drawn.below(2):
        # without its checksum, as earlier versions wrote it
        said = json.loads(text_of(own[checkpoint.ABOUT]))
        del said["tensors"][checkpoint.ABOUT]
        own[checkpoint.ABOUT] = letters(drawn.edited(json.dumps(said)))
    for _ in range(drawn.below(3)):
        key = [*own, "a//new", "//job", "none"][drawn.below(len(own) + 3)]
        own[key] = drawn.tensor()
    with suppress(ValueError):
        read = checkpoint.unpack(own)
        read.check(SLOTS, ())
        read.of_rank(0, 2)
        read.facts()
    with suppress(ValueError):
        checkpoint.reshard([own, _states()[1]], 1 + drawn.below(4))
    with suppress(ValueError):
        checkpoint.gather([own, _states()[1]])


def entries(data: bytes) -> None:
    """The reference's decoder of entries."""
    drawn = Bytes(data)
    n = 1 + drawn.below(5000)
    layout = Entries(n, 1 + drawn.below(n), 32 if drawn.below(2) else 4)
    payload = torch.tensor(list(drawn.take(layout.nbytes)), dtype=torch.uint8)
    with suppress(ValueError):
        indices, values = REFERENCE.unpack_entries(payload[None], layout)
        assert len(indices) == len(values) <= layout.k
        assert bool(((indices >= 0) & (indices < n)).all())
        REFERENCE.sum_entries(payload[None, None], torch.empty(n), [layout])


def blocks(data: bytes) -> None:
    """The reference's decoder of blocks."""
    drawn = Bytes(data)
    lengths = tuple(1 + drawn.below(700) for _ in range(1 + drawn.below(3)))
    layout = Blocks(lengths, CODES[drawn.below(len(CODES))])
    rows = torch.tensor(list(drawn.take(layout.nbytes)), dtype=torch.uint8)[None]
    out = torch.zeros(layout.numel + 16)
    REFERENCE.sum_blocks(rows[None], out[: layout.numel], [layout])
    assert not out[layout.numel :].any()


TARGETS: dict[str, Callable[[bytes], None]] = {"plan": plan, "state": state, "entries": entries, "blocks": blocks}


def main(target: str, seconds: str = "600") -> None:
    import atheris

    for function in (TARGETS[target], *_functions()):
        atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-max_len=4096", "-len_control=0"], TARGETS[target])
    atheris.Fuzz()


def _functions() -> Iterator[FunctionType]:
    """Those of all modules of Gradwire, methods among them: what they reach tells atheris which bytes lead on."""
    for module in [each for name, each in sys.modules.items() if name.startswith("gradwire.")]:
        own = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
        for holder in (module, *filter(isclass, own)):
            for each in vars(holder).values():
                function = unwrap(getattr(each, "__func__", each))
                if isfunction(function) and function.__module__ == module.__name__:
                    yield function


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
