"""Runs the schedules over real gloo."""

import pytest

from tests.processes import moments
from tests.processes.launched import Outcomes, cases


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    return Outcomes(moments, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.parametrize(("name", "world"), cases(moments))
def test_scenario(name, world, outcomes):
    outcomes.check(name, world)
