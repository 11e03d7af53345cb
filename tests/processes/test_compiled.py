"""Runs the scenarios of compiled models over real gloo."""

import pytest

from tests.processes import compiled
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(compiled))
def test_scenario(name, world):
    check(compiled, name, world)
