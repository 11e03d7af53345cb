"""Runs the scenarios of ranks that are out of step over real gloo."""

import pytest

from tests.processes import out_of_step
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(out_of_step))
def test_scenario(name, world):
    check(out_of_step, name, world)
