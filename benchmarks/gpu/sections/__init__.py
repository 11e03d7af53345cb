"""The sections. Each has a module here with a function `run(rows, device)`."""

from typing import NamedTuple


class Section(NamedTuple):
    """A section's share of the time."""

    seconds: float
    """Of eight minutes; of less or more, as much less or more."""
    parts: int = 1
    """Its processes, each with a part of its rows."""
    times: bool = False
    """It measures times, and so runs alone."""
    module: str = ""
    """The module here, if it is not that of its name."""
    asked: bool = False
    """It runs only where it is named."""


SECTIONS = {
    "versions": Section(20),
    "correct": Section(110, parts=8),
    "waits": Section(110, parts=5),
    "nccl": Section(100, parts=7),
    "doctor": Section(100),
    "shared": Section(100),
    "sanitizer": Section(110, parts=4),
    "kernels": Section(65, times=True),
    "bert": Section(85, times=True, module="steps"),
    "resnet": Section(55, times=True, module="steps"),
    "layers": Section(25, times=True),
    "native": Section(30, times=True),
    "memory": Section(35, times=True),
    "first": Section(25, times=True),
    "gpt2": Section(60, times=True, module="steps"),
    "bert512": Section(60, times=True, module="steps"),
    "traces": Section(25, times=True),
    "cupcake": Section(240, times=True, module="published", asked=True),
    "acpsgd": Section(80, times=True, module="published", asked=True),
    "adtopk": Section(120, times=True, module="published", asked=True),
    "gravac": Section(40, times=True, module="published", asked=True),
}
