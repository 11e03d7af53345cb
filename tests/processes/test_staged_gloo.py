"""Runs the scenarios over real gloo."""

import pytest

from tests.processes import staged_gloo
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(staged_gloo))
def test_scenario(name, world):
    check(staged_gloo, name, world)
