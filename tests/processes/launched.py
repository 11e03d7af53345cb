"""Runs scenarios over real gloo: each on forked ranks of its own.

`python -m tests.processes.launched MODULE SCENARIO` is what a rank runs.
"""

import sys
from datetime import timedelta
from importlib import import_module
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from _pytest.mark import ParameterSet

from gradwire.torch_private.process_groups import default_store
from tests.processes.scenarios import SCENARIOS
from tests.support.ranks import run_ranks


def cases(module: ModuleType) -> list[ParameterSet]:
    """The module's own scenarios, each with every number of ranks that it is meant for: with three, or else the least,
    in `make test`, with the others in `make test-all`."""
    return [
        pytest.param(name, world, marks=[pytest.mark.long] if long or world != usual(worlds) else [])
        for name, (made, worlds, long) in SCENARIOS.items()
        if made.__module__ == module.__name__
        for world in worlds
    ]


def usual(worlds: tuple[int, ...]) -> int:
    return 3 if 3 in worlds else min(worlds)


def check(module: ModuleType, name: str, world: int) -> None:
    """Fails with the errors of the scenario's ranks."""
    run_ranks(["-m", __name__, module.__name__, name], world, imports=[module.__name__])


def main(name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    function, *_ = SCENARIOS[name]
    function()
    store, world = default_store(), dist.get_world_size()
    store.set(f"ended/{dist.get_rank()}", "")
    store.wait([f"ended/{rank}" for rank in range(world)])  # gloo's connections close when the first process ends


if __name__ == "__main__":
    import_module(sys.argv[1])
    main(sys.argv[2])
