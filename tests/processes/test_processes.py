"""Runs the scenarios over real gloo."""

import pytest

from tests.processes import scenarios
from tests.processes.launched import Outcomes, cases


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    return Outcomes(scenarios, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.parametrize(("name", "world"), cases(scenarios))
def test_scenario(name, world, outcomes):
    outcomes.check(name, world)
