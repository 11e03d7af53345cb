"""Runs the scenarios of sharded models over real gloo."""

import pytest

from tests.processes import shards
from tests.processes.launched import Outcomes, cases


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    return Outcomes(shards, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.parametrize(("name", "world"), cases(shards))
def test_scenario(name, world, outcomes):
    outcomes.check(name, world)
