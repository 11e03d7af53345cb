"""Runs the scenarios of weights over real gloo."""

import pytest

from tests.processes import weighted
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(weighted))
def test_scenario(name, world):
    check(weighted, name, world)
