"""Runs the scenarios of local steps over real gloo."""

import pytest

from tests.processes import local_steps
from tests.processes.launched import Outcomes, cases


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    return Outcomes(local_steps, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.parametrize(("name", "world"), cases(local_steps))
def test_scenario(name, world, outcomes):
    outcomes.check(name, world)
