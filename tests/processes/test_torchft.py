"""Runs the scenarios beside torchft, where that is installed, over real gloo."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradwire.lab.launch import launch
from tests.processes import torchft
from tests.processes.scenarios import SCENARIOS

MINE = [name for name, (made, _) in SCENARIOS.items() if made.__module__ == torchft.__name__]
INSTALLED = find_spec("torchft")

pytestmark = pytest.mark.skipif(INSTALLED is None, reason="pip install torchft")


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    assert INSTALLED is not None
    assert INSTALLED.origin is not None
    out = tmp_path_factory.mktemp("torchft") / "2.json"
    folders = [str(Path(__file__).parents[2]), str(Path(INSTALLED.origin).parents[1])]
    launch(["-m", torchft.__name__, str(out)], 2, env={"PYTHONPATH": os.pathsep.join(folders)}, timeout_s=240)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", MINE)
def test_scenario(name, outcomes):
    assert name in outcomes, "an earlier scenario failed"
    assert outcomes[name] is None, outcomes[name]
