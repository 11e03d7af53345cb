"""The sections, each a module here with a function `run(rows, device)`."""

from typing import NamedTuple


class Section(NamedTuple):
    """A section's share of eight minutes."""

    seconds: float
    parts: int = 1
    """Its processes, each with a part of its rows."""
    times: bool = False
    """It measures times, and so runs alone."""


SECTIONS = {
    "versions": Section(30),
    "correct": Section(120, parts=5),
    "waits": Section(120, parts=3),
    "nccl": Section(100),
    "doctor": Section(100),
    "kernels": Section(70, times=True),
    "steps": Section(170, times=True),
    "layers": Section(30, times=True),
    "memory": Section(45, times=True),
    "first": Section(30, times=True),
}  # fmt: skip
