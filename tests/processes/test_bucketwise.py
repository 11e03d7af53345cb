"""Runs the scenarios of gradients that come bucket by bucket over real gloo."""

import pytest

from tests.processes import bucketwise
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(bucketwise))
def test_scenario(name, world):
    check(bucketwise, name, world)
