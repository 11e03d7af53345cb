"""The lazy sum of residual and gradient, whenever it is added up."""

import pytest
import torch

import gradwire as gw
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from tests.support.harness import alone

N, DECAY, WEIGHT = 1000, 0.5, 0.25


def made(old: bool = True) -> tuple[LazySum, torch.Tensor]:
    """A sum, not added up yet, and what it is."""
    residual, gradient = (torch.randn(N, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    x = DECAY * residual + WEIGHT * gradient if old else WEIGHT * gradient
    return LazySum(torch.empty(N), residual if old else None, gradient, DECAY, WEIGHT, torch.zeros(1)), x


@pytest.mark.parametrize("old", [True, False])
def test_it_is_added_up_once(old: bool):
    vector, x = made(old)
    first = vector.total().clone()
    assert torch.allclose(first, x)
    assert torch.equal(vector.total(), first)


@pytest.mark.parametrize("codec", [gw.TopK(0.1), gw.QSGD()], ids=str)
@pytest.mark.parametrize("added", [False, True])
def test_what_is_left_and_what_was_encoded_are_the_sum(codec: gw.compressors.Codec, added: bool):
    """Added up before, for a controller that looks at it, or in the pass that encodes it."""
    vector, x = made()
    if added:
        vector.total()
    context, payload = alone(N, codec), torch.zeros(codec.payload_bytes(N), dtype=torch.uint8)
    codec.encode(vector, payload[None], context.whole)
    decoded = torch.empty(N)
    codec.decode(payload[None, None], Mean.of(decoded), context.whole)
    assert torch.allclose(vector.next + decoded, x, atol=1e-6)


def test_a_sum_that_is_dropped_is_zero_and_flagged():
    vector, _ = made()
    vector.drop()
    assert not vector.total().any()
    assert vector.nonfinite is not None
    assert vector.nonfinite.isnan().all()


@pytest.mark.parametrize("old", [True, False])
def test_a_sum_goes_onto_another_with_all_that_it_is(old: bool):
    vector, x = made(old)
    more, into = torch.randn(N, generator=torch.Generator().manual_seed(2)), torch.empty(N)
    assert torch.allclose(vector.onto(more, into, 0.9).total(), 0.9 * more + x)
    if old:  # a state of its own, such as a velocity, which is written
        assert torch.allclose(vector.next, x)
