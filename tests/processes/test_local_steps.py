"""Runs the scenarios of local steps over real gloo."""

import pytest

from tests.processes import local_steps
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(local_steps))
def test_scenario(name, world):
    check(local_steps, name, world)
