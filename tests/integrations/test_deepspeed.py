"""Under DeepSpeed, on CPUs: `make test-deepspeed`."""

import pytest

pytest.importorskip("deepspeed", reason="`make test-deepspeed` installs it")

from deepspeed.accelerator import get_accelerator

from tests.processes import with_deepspeed
from tests.processes.launched import cases, check

FLOAT16 = {
    "mixed_precision_trains_as_deepspeed_does",
    "memories_know_nothing_of_loss_scales",
    "a_step_that_overflows_leaves_memories_as_they_were",
    "engines_without_whole_gradients_are_refused",
}
"""The scenarios that train in float16."""


@pytest.mark.parametrize(("name", "world"), cases(with_deepspeed))
def test_scenario(name, world):
    if name in FLOAT16 and not get_accelerator().is_fp16_supported():
        pytest.skip("DeepSpeed trains in float16 on CPUs with AVX512-FP16 alone")
    check(with_deepspeed, name, world)
