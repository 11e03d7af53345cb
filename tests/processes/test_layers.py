"""Runs the scenarios of rules by layer and of sparse gradients over real gloo."""

import pytest

from tests.processes import layers
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(layers))
def test_scenario(name, world):
    check(layers, name, world)
