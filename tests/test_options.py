"""Options that cannot be are refused when a compressor, memory, communicator or controller is made."""

import json
import subprocess
import sys
from dataclasses import MISSING, dataclass, fields
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

import gradwire as gw
from gradwire.communicators import Communicator
from gradwire.compressors import Compressor, FixedSizeCompressor
from gradwire.construct import exported
from gradwire.controllers import Controller
from gradwire.memories import Memory
from gradwire.plans import default_communicator, default_memory
from tests.support.harness import draw, job, slots_of

REQUIRED = {"threshold": 0.5, "low": 0.5, "high": 0.1}
"""Of options without a default."""
NUMBERS = [-1, 0, 3, 2**31 - 8, 2**31, 2**53 + 1, 2**63, 2**2000, 4.0, 1e-320, 1e38, 1e308, nan, inf, -inf]
WRONG = [*NUMBERS, "x", "4", "", b"", True, None, [], {}, 1j, object(), int, gw.TopK]
CLASSES = [cls for base in (Compressor, Memory, Communicator, Controller) for cls in exported(base).values()]


def needed(cls: type) -> dict[str, float]:
    """Values of all options without a default."""
    return {f.name: REQUIRED[f.name] for f in fields(cls) if f.init and f.default is f.default_factory is MISSING}


def made(cls: type, name: str, value: Any) -> Any:
    """An object of the class with this option; None where that is refused in one line that names it."""
    try:
        return cls(**needed(cls) | {name: value})
    except ValueError as error:
        said = str(error)
    assert name in said
    assert "\n" not in said


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_option_that_cannot_be_is_refused_and_any_other_works(cls: type):
    names = [field.name for field in fields(cls) if field.init and "code" not in field.metadata]
    assert cls(**needed(cls))  # or all were refused
    parts = [part for name in names for value in WRONG if (part := made(cls, name, value))]
    if parts and not issubclass(cls, Controller):
        work(parts)


def work(parts: list[Any]) -> None:
    """Two ranks take a step with all of them, a group each, and the plan survives the way through JSON."""
    slots = slots_of({str(number): torch.empty(16, 16) for number in range(len(parts))})
    plan = gw.Plan(tuple(group_of(part, slot.name) for part, slot in zip(parts, slots, strict=True)))
    assert gw.Plan.from_json(plan.to_json()) == plan
    priced = [group.compressor for group in plan.groups if isinstance(group.compressor, FixedSizeCompressor)]
    assert all(compressor.slot_bytes(slots[0]) > 0 for compressor in priced)
    with job(plan, slots, 2) as running:
        assert all(mean.isfinite().all() for mean in running.step(draw(slots, 2, 0))[0])


def group_of(part: Any, name: str) -> gw.Group:
    compressor = part if isinstance(part, Compressor) else gw.TopK(0.05)
    memory = part if isinstance(part, Memory) else default_memory(compressor)
    communicator = part if isinstance(part, Communicator) else default_communicator(compressor)
    return gw.Group((name,), compressor, memory, communicator)


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("compressor", {"name": "TopK", "value_bits": 4.0}, "TopK(value_bits=4.0) takes 32 or 4, e.g. value_bits=32"),
        ("compressor", {"name": "Interleaved", "first": 1, "second": 2}, "Interleaved(first=1) takes a Codec, e.g."),
        ("compressor", {"name": "Interleaved", "first": {"name": "PowerSGD"}}, "takes a Codec"),
        ("compressor", {"name": "Quantized", "block": 2**31}, "block=2147483648 elements"),
        ("compressor", {"name": "QSGD", "block": 1024.0}, "QSGD(block=1024.0) takes a whole number, e.g. block=1024"),
        ("memory", {"name": "DGCMemory", "clip": "1"}, "DGCMemory(clip='1') takes a finite number, or None"),
        ("communicator", {"name": "AllGather", "over_senders": 1}, "AllGather(over_senders=1) takes True or False"),
    ],
)
def test_a_plan_with_such_an_option_is_refused_when_it_is_read(part: str, change: dict, why: str):
    data = json.loads(gw.Plan((gw.Group(("a",), gw.TopK(0.1), gw.Residual(), gw.AllGather()),)).to_json())
    data["groups"][0][part] = change
    with pytest.raises(ValueError, match=r"takes|block") as refusal:
        gw.Plan.from_json(json.dumps(data))
    assert why in str(refusal.value)


@dataclass(frozen=True)
class Unread(gw.Memory):
    limit: "NotThere" = 1  # noqa: F821 # pyright: ignore

    def add(self, flat, gradient, layout, ranks): ...


def test_a_users_class_is_checked_as_far_as_its_annotations_can_be_read():
    @dataclass(frozen=True)
    class Own(gw.Memory):
        limit: float
        names: tuple[str, ...] = ()

        def add(self, flat, gradient, layout, ranks): ...

    assert Unread().limit == 1
    assert Own(2, names=("a",)).limit == 2
    with pytest.raises(ValueError, match=r"^Own\(limit='2'\) takes a finite number$"):
        Own("2")  # pyright: ignore


USERS = """
import gradwire as gw
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

def train(ddp: DistributedDataParallel) -> int:
    handle = gw.attach(ddp, gw.TopK(ratio=0.01), memory=gw.Residual(), groups=gw.groups.of(megabytes=25), seed=3)
    gw.LocalSteps(SGD(ddp.parameters()), ddp, gw.Quantized(4), fragments=2, outer=gw.Outer(lr=0.7)).zero_grad()
    gw.DistributedOptimizer(SGD(ddp.parameters()), ddp, "topk:0.01+residual", controller=gw.GraVAC()).skip()
    gw.TopK(ratios=0.01)  # wrong
    gw.TopK("1%")  # wrong
    gw.Topk(0.01)  # wrong
    gw.attach(ddp, gw.Residual())  # wrong
    gw.attach(ddp, gw.TopK(0.01), memori=gw.Residual())  # wrong
    return handle.stats().wire_bytes
"""


def test_a_type_checker_sees_what_calls_take_and_return(tmp_path: Path):
    pytest.importorskip("pyright", reason="the type checker is not installed")
    file = tmp_path / "users.py"
    file.write_text(USERS)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(file)]
    root = Path(gw.__file__).parents[1]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    found = json.loads(result.stdout)["generalDiagnostics"]
    wrong = [number for number, line in enumerate(USERS.splitlines()) if line.endswith("# wrong")]
    assert sorted({each["range"]["start"]["line"] for each in found}) == wrong, result.stdout
