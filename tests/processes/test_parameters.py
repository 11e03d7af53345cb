"""Runs the scenarios of which parameters are reduced over real gloo."""

import pytest

from tests.processes import parameters
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(parameters))
def test_scenario(name, world):
    check(parameters, name, world)
