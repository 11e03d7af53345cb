"""Runs the scenarios of sharded models over real gloo, in one launch of 4 ranks."""

import json
from pathlib import Path

import pytest

from gradwire.lab.launch import launch
from tests.processes import shards
from tests.processes.scenarios import SCENARIOS

MINE = [name for name, (made, _) in SCENARIOS.items() if made.__module__ == shards.__name__]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    out = tmp_path_factory.mktemp("shards") / "4.json"
    root = Path(__file__).parents[2]
    launch(["-m", shards.__name__, str(out)], 4, env={"PYTHONPATH": str(root)}, timeout_s=400)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", MINE)
def test_scenario(name, outcomes):
    assert name in outcomes, "an earlier scenario failed"
    assert outcomes[name] is None, outcomes[name]
