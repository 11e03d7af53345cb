"""Under Megatron-core, on CPUs: `make test-megatron`."""

import pytest

pytest.importorskip("megatron.core", reason="`make test-megatron` installs it")

from tests.processes import with_megatron
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(with_megatron))
def test_scenario(name, world):
    check(with_megatron, name, world)
