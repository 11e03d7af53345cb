"""Runs the scenarios of ranks that are out of step over real gloo."""

import pytest

from tests.processes import out_of_step
from tests.processes.launched import Outcomes, cases


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return Outcomes(out_of_step, tmp_path_factory.mktemp("outcomes"))


@pytest.mark.parametrize(("name", "world"), cases(out_of_step))
def test_scenario(name, world, outcomes):
    outcomes.check(name, world)
