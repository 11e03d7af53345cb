"""Runs the scenarios of sharded models over real gloo."""

import pytest

from tests.processes import shards
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(shards))
def test_scenario(name, world):
    check(shards, name, world)
