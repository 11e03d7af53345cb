"""Runs the schedules over real gloo."""

import pytest

from tests.processes import moments
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(moments))
def test_scenario(name, world):
    check(moments, name, world)
