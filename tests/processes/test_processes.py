"""Runs the scenarios over real gloo, with one launch per number of ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.lab.launch import free_port, launch
from tests.processes import scenarios

CASES = [
    (name, world)
    for name, (made, worlds) in scenarios.SCENARIOS.items()
    for world in worlds
    if made.__module__ == scenarios.__name__
]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    known: dict[int, dict[str, str | None]] = {}

    def of(world: int) -> dict[str, str | None]:
        if world not in known:
            out = folder / f"{world}.json"
            root = Path(__file__).parents[2]
            argv = ["-m", "tests.processes.scenarios", str(out)]
            launch(argv, world, env={"PYTHONPATH": str(root)}, timeout_s=240)
            known[world] = json.loads(out.read_text())
        return known[world]

    return of


@pytest.mark.parametrize(("name", "world"), sorted(CASES, key=lambda case: case[1]))
def test_scenario(name, world, outcomes):
    outcome = outcomes(world)
    assert name in outcome, "an earlier scenario failed"
    assert outcome[name] is None, outcome[name]


LOST = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire as gw

dist.init_process_group("gloo")
ddp = DistributedDataParallel(torch.nn.Linear(50, 50))
gw.attach(ddp, gw.TopK(0.1))
for _ in range(3):  # DDP itself talks when the second begins
    ddp(torch.ones(2, 50)).sum().backward()
if dist.get_rank() == 0:
    os._exit(1)  # and the store goes with it
try:
    ddp(torch.ones(2, 50)).sum().backward()
except RuntimeError as error:
    print(error, flush=True)
os._exit(0)
"""


def test_the_ranks_that_are_left_do_not_hang_when_the_stores_host_dies():
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    command = [sys.executable, "-c", LOST]
    with (
        subprocess.Popen(command, env=shared | {"RANK": "0"}),
        subprocess.Popen(command, env=shared | {"RANK": "1"}, stdout=subprocess.PIPE) as survivor,
    ):
        try:
            said, _ = survivor.communicate(timeout=60)
        finally:
            survivor.kill()
    assert b"a rank was lost" in said
