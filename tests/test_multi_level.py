"""Multi-level compression: the second level is what would have been selected alone, and ranks send the same one."""

import re

import pytest
import torch
from harness import SMALL, WIDE, alone, draw, job, plan_of, slots_of
from torch import Tensor

import gradwire as gw
from gradwire.collective import Gather, Sum
from gradwire.compressors.select import top_k

SLOTS, WIDE_SLOTS = slots_of(SMALL), slots_of(WIDE)


def both_levels(compressor: gw.MultiLevel, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What the two levels of x stand for, and what was observed of them."""
    state = alone(len(x), compressor)
    decoded = []
    for codec, payload in zip((compressor.codec, compressor.second), compressor.encode(x, state), strict=True):
        out = torch.empty(len(x))
        codec.decode(payload[None], out, state)
        decoded.append(out)
    return decoded, compressor.observed(state)


@pytest.mark.parametrize("n", [1, 10, 1000, 200_001])
@pytest.mark.parametrize(("ratio", "further"), [(0.1, 10), (0.5, 2), (0.03, 1), (1.0, 1000)])
def test_of_top_k_the_second_level_is_what_it_selects_alone(n: int, ratio: float, further: float):
    x = torch.randn(n, generator=torch.Generator().manual_seed(n))
    compressor = gw.MultiLevel(gw.TopK(ratio), further)
    (_, second), _ = both_levels(compressor, x)
    state = alone(n, compressor)
    direct = torch.zeros(n)
    indices = top_k(x, max(1, int(n * ratio / further)), state.scratch)
    direct[indices] = x[indices]
    assert torch.equal(second, direct)


@pytest.mark.parametrize(
    "codec", [gw.TopK(0.1), gw.DGC(0.1), gw.GaussianK(0.1), gw.RedSync(0.1), gw.RandomK(0.1)], ids=str
)
def test_what_was_achieved_is_what_is_observed(codec: gw.compressors.Codec):
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(3))
    compressor = gw.MultiLevel(codec, 10)
    levels, observed = both_levels(compressor, x)
    energies = [v.square().sum() for v in (x, *levels)]
    torch.testing.assert_close(observed[:3], torch.stack(energies), rtol=1e-4, atol=0.0)
    assert observed[3:].tolist() == [v.count_nonzero() for v in levels]
    assert observed[4] == 700


def level_of(ops: list) -> str:
    """Which level's payload followed the message of 24 bytes."""
    assert len(ops) == 2
    assert ops[0].result.nbytes == 24
    if isinstance(ops[1], Sum):
        return "dense"
    assert isinstance(ops[1], Gather)
    return "second" if ops[1].send.nbytes < 2000 else "first"


@pytest.mark.parametrize(("least", "expected"), [(0.0, "second"), (0.3, "first"), (0.99, "dense")])
def test_the_first_level_that_holds_enough_is_sent(least: float, expected: str):
    plan = plan_of(WIDE_SLOTS, gw.MultiLevel(gw.TopK(0.1), 100, least), gw.Residual(), gw.AllReduce(), groups=1)
    with job(plan, WIDE_SLOTS, 3) as running:
        transport = running.transports[0]
        for number in range(3):
            handed = len(transport.started)
            running.step(draw(WIDE_SLOTS, 3, number))
            assert level_of(transport.started[handed:]) == expected
        residual = running.state("residual")
        assert (expected == "dense") == all(not left.any() for own in residual for left in own)


def test_ranks_whose_gradients_differ_wildly_choose_alike():
    plan = plan_of(SLOTS, gw.MultiLevel(gw.TopK(0.3), 5, 0.6), gw.Residual(), gw.AllReduce(), groups=3)
    with job(plan, SLOTS, 4) as running:
        for number in range(20):
            scales = [10.0 ** ((rank * 7 + number) % 5 - 2) for rank in range(4)]
            grads = [[g.mul_(s) for g in own] for own, s in zip(draw(SLOTS, 4, number), scales, strict=True)]
            if number % 3 == 0:
                grads[number % 4] = [g.pow(9) for g in grads[number % 4]]
            means = running.step(grads)
            assert all(torch.equal(a, b) for other in means for a, b in zip(means[0], other, strict=True))


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("use e.g. MultiLevel(TopK(0.1), further=10)", lambda: gw.MultiLevel(gw.QSGD())),
        ("use e.g. MultiLevel(TopK(0.1), further=10)", lambda: gw.MultiLevel(gw.RandomK(0.1, rescale=True))),
        ("use 1 or more, e.g. further=10", lambda: gw.MultiLevel(further=0.5)),
        ("it lies in [0, 1]", lambda: gw.MultiLevel(min_energy=2)),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, make):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()
