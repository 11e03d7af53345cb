"""Runs the scenarios over real gloo, with one launch per number of ranks."""

import json
from pathlib import Path

import pytest

from gradwire.lab.launch import launch
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
