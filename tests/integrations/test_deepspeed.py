"""Under DeepSpeed, on CPUs: `make test-deepspeed`."""

import pytest

pytest.importorskip("deepspeed", reason="`make test-deepspeed` installs it")

from tests.processes import with_deepspeed
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(with_deepspeed))
def test_scenario(name, world):
    check(with_deepspeed, name, world)
