"""The part of a published system's page about one GPU: a table of step times, or the command that has yet to run."""

from typing import Any

from benchmarks.gpu.setups import SETUPS, Setup
from benchmarks.pages.page import Shown
from benchmarks.scheduler.published import PUBLISHED
from benchmarks.shared.provenance import RESULTS, load

CLUSTERS = {8: "8 GPUs, PCIe", 64: "64 GPUs, 25 Gb/s"}
COMPRESSORS = ("randomk:0.01", "dgc:0.01", "efsignsgd", "onebit")
GROUPS = {"0mb": "GRACE", "planned": "Cupcake"}
"""Cupcake's clusters by their ranks, its compressors in the order of `PUBLISHED`, and whose groups are which."""


def on_a_gpu(system: str) -> list[Shown]:
    """Times of a step over one without communication, by set-up and way; nothing where no GPU has been there."""
    name = f"gpu_{system}"
    return [table(system, load(name), name)] if (RESULTS / f"{name}.json").exists() else []


def waiting(system: str, suite: str) -> str:
    """The commands that wait for GPUs: the suite on many, and the same played on one."""
    played = f"benchmarks/gpu/gpu.py --only versions,{system}"
    return "Awaiting GPUs: " + ", ".join(f"`{command}`" for command in (suite, *([] if on_a_gpu(system) else [played])))


def table(system: str, found: dict[str, Any], result: str) -> Shown:
    """The table of a system; in brackets what was published."""
    faster = {row["model"]: row["faster"] for row in found["set-up"]}
    took = {(row["model"], row["what"]): row["of none"] for row in found["steps"]}
    setups = [setup for setup in SETUPS[system] if setup.label in faster]
    ways = dict.fromkeys(way for setup in setups for way in ("dense", *setup.ways))
    rows = [
        [way, *(_cell(took.get((setup.label, way)), _theirs(system, setup, way)) for setup in setups)] for way in ways
    ]
    scales = ", ".join(f"{faster[setup.label]:.1f}x" for setup in setups)
    note = (
        "One rank is played on one GPU: a step over one without communication, in brackets the published one. Links "
        f"are as much faster as the card is than a V100, {scales}."
    )
    return Shown([result], ["", *(setup.label for setup in setups)], rows, note)


def _theirs(system: str, setup: Setup, way: str) -> float | None:
    """The published time over one without communication, from Cupcake's scaling factors."""
    name, _, groups = way.partition("@")
    if system != "cupcake" or (way != "dense" and groups not in GROUPS):
        return None
    dense, factors = PUBLISHED[CLUSTERS[setup.cluster.ranks], setup.model]
    return 100 / (dense if way == "dense" else factors[GROUPS[groups]][COMPRESSORS.index(name)])


def _cell(ours: float | None, theirs: float | None) -> str:
    return "" if ours is None else f"{ours:.2f}" + (f" ({theirs:.2f})" if theirs else "")
