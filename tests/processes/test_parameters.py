"""Runs the scenarios of which parameters are reduced over real gloo."""

import pytest

from tests.processes import parameters
from tests.processes.launched import Outcomes, cases


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    return Outcomes(parameters, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.parametrize(("name", "world"), cases(parameters))
def test_scenario(name, world, outcomes):
    outcomes.check(name, world)
