"""Runs the scenarios over real gloo."""

import pytest

from tests.processes import scenarios
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(scenarios))
def test_scenario(name, world):
    check(scenarios, name, world)
