"""Runs the scenarios beside torchft, where that is installed, over real gloo."""

from importlib.util import find_spec

import pytest

from tests.processes import torchft
from tests.processes.launched import cases, check

pytestmark = pytest.mark.skipif(find_spec("torchft") is None, reason="pip install torchft")


@pytest.mark.parametrize(("name", "world"), cases(torchft))
def test_scenario(name, world):
    check(torchft, name, world)
