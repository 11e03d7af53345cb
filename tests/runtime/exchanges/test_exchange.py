"""Which steps an exchange counts, and dense groups that send the residual of an earlier plan."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.compressors import SlotState
from tests.support.harness import Job, draw, hosts, job, plan_of, slots_of

SLOTS = slots_of({"first.weight": torch.empty(7, 5), "first.bias": torch.empty(7), "second.weight": torch.empty(3, 7)})
COMPRESSED = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
SCALE = 4.0


def dense(compressor: gw.Compressor, communicator: gw.Communicator | None = None) -> gw.Plan:
    return plan_of(SLOTS, compressor, gw.NoMemory(), communicator or gw.AllReduce())


def left(running: Job) -> list[Tensor]:
    """The sum of all ranks' residuals, by slot."""
    return [torch.stack(own).sum(0) for own in zip(*running.state("residual"), strict=True)]


def given(numbers: int) -> list[list[Tensor]]:
    return draw(SLOTS, 2, numbers)


def mean(grads: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(own).mean(0) for own in zip(*grads, strict=True)]


def close(found: list[Tensor], wanted: list[Tensor], compressor: gw.Compressor) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 if compressor == gw.FP32() else 3e-2)


@pytest.mark.parametrize(
    ("compressor", "communicator"),
    [(gw.FP32(), None), (gw.BF16(), None), (gw.FP16(), None), (gw.FP16(), gw.ScatterReduce())],
    ids=str,
)
@pytest.mark.parametrize("scale", [None, SCALE], ids=["", "with a loss scale"])
def test_a_slot_that_was_absent_on_one_rank_sends_its_residual_later(
    compressor: gw.Compressor, communicator: gw.Communicator | None, scale: float | None
):
    factor = scale or 1.0
    options = {"scale": lambda: torch.tensor(scale)} if scale else {}
    with job(COMPRESSED, SLOTS, 2, find_unused=True, **options) as running:
        means = running.step([[factor * g for g in own] for own in given(0)])
        running.install(dense(compressor, communicator))
        kept = left(running)
        # residuals are not scaled
        close([m / factor + k for m, k in zip(means[0], kept, strict=True)], mean(given(0)), gw.FP32())
        assert all(tensor.any() for tensor in kept)
        # rank 1 has no gradient of slot 0, and keeps its residual there
        second = given(1)
        waits = running.state("residual")[1][0]
        scaled: list[list[Tensor | None]] = [[factor * g for g in own] for own in second]
        scaled[1][0], second[1][0] = None, torch.zeros(7, 5)
        means = running.step(scaled)  # pyright: ignore[reportArgumentType]
        wanted = [m + k for m, k in zip(mean(second), kept, strict=True)]
        wanted[0] -= waits
        close([m / factor for m in means[0]], wanted, compressor)
        assert torch.equal(running.state("residual")[1][0], waits)
        # and sends it with its next one, while rank 0 has nothing left
        third = given(2)
        means = running.step([[factor * g for g in own] for own in third])
        wanted = mean(third)
        wanted[0] += waits
        close([m / factor for m in means[0]], wanted, compressor)
        assert all(torch.equal(a, b) for a, b in zip(*means, strict=True))
        assert not any(tensor.any() for tensor in left(running))


def test_a_gradient_that_an_earlier_pass_has_left_is_sent_where_a_residual_waits():
    with job(COMPRESSED, SLOTS, 2, find_unused=True) as running:
        running.step(given(0))
        running.install(dense(gw.FP32()))
        kept, waits = left(running), running.state("residual")[1][0]
        # rank 1's gradient of slot 0 is an earlier pass's
        second = given(1)
        means = [[grad.clone() for grad in own] for own in second]
        for rank, (runtime, own) in enumerate(zip(running.runtimes, means, strict=True)):
            runtime.open_step()
            for slot, grad in enumerate(own):
                (runtime.submit_absent if (rank, slot) == (1, 0) else runtime.submit)(slot, grad)
        running.finish()
        wanted = [m + k for m, k in zip(mean(second), kept, strict=True)]
        wanted[0] -= waits
        close(means[0], wanted, gw.FP32())
        assert torch.equal(running.state("residual")[1][0], waits)


def test_ranks_that_load_a_residual_send_it_though_others_have_none():
    """Of hosts, where leaders alone keep one."""
    with job(COMPRESSED, SLOTS, 4, transports=hosts(2, 2)) as running:
        running.step(draw(SLOTS, 4, 0))
        states, kept = running.states(), left(running)
    with job(dense(gw.FP32()), SLOTS, 4) as running:
        running.load(states)
        # a step that is not finite is taken by none, and nothing is lost
        bad = draw(SLOTS, 4, 1)
        bad[0][1][0] = torch.inf
        running.step(bad)
        assert all(torch.equal(a, b) for a, b in zip(left(running), kept, strict=True))
        means = running.step(draw(SLOTS, 4, 2))
        close(means[0], [m + k for m, k in zip(mean(draw(SLOTS, 4, 2)), kept, strict=True)], gw.FP32())
        assert all(torch.equal(a, b) for own in means[1:] for a, b in zip(own, means[0], strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_are_averaged_in_float32(dtype: torch.dtype):
    """Each rounded before, they would have twice the error."""
    slots = slots_of({slot.name: torch.empty(slot.shape, dtype=dtype) for slot in SLOTS})
    with job(plan_of(slots, gw.FP32(), gw.NoMemory(), gw.AllReduce()), slots, 3) as running:
        grads = [[grad.to(dtype) for grad in own] for own in draw(SLOTS, 3, 0)]
        means = running.step(grads)
        for found, own in zip(means[0], zip(*grads, strict=True), strict=True):
            assert torch.equal(found, torch.stack(own).float().mul(1 / 3).sum(0).to(dtype))


@pytest.mark.parametrize("communicator", [gw.AllReduce(), gw.AllGather(), gw.ScatterReduce()], ids=str)
@pytest.mark.parametrize("by_host", [False, True])
def test_small_gradients_of_a_scaled_loss_survive_16_bits(communicator: gw.Communicator, by_host: bool):
    scale, looked = 2.0**16, list[float]()
    options = {"transports": hosts(2, 2)} if by_host else {}
    with job(dense(gw.FP16(), communicator), SLOTS, 4, scale=lambda: scale, **options) as running:
        for runtime in running.runtimes:
            for exchange in runtime._steps.exchanges:
                inner = getattr(exchange, "_between", exchange)
                inner._job = replace(inner._job, encode_hook=lambda _, x: looked.append(float(x.total().max())))
        for number in (1e-8, 1e-7, 1e-6):
            means = running.step([[torch.full(slot.shape, scale * number) for slot in SLOTS]] * 4)
            close([mean / scale / number for mean in means[0]], [torch.ones(slot.shape) for slot in SLOTS], gw.FP16())
            # controllers see what gradients are
            assert looked.pop() == pytest.approx(number / (2 if by_host else 4), rel=1e-3)


def test_a_scaled_loss_that_is_too_large_for_16_bits_spoils_the_step_of_all_groups():
    sixteen = gw.Group(("first.weight",), gw.FP16(), gw.NoMemory(), gw.ScatterReduce())
    sparse = gw.Group(("first.bias", "second.weight"), gw.TopK(0.1), gw.Residual(), gw.AllGather())
    plan = gw.Plan((sixteen, sparse))
    with job(plan, SLOTS, 2, scale=lambda: 1e6) as running:
        running.step([[1e6 * grad for grad in own] for own in given(0)])
        assert [runtime.stats().skipped for runtime in running.runtimes] == [1, 1]
        assert not any(tensor.any() for tensor in left(running))


@pytest.mark.parametrize("scale", [1.0, SCALE])
def test_a_residual_of_a_rank_that_leads_no_more_goes_out_once(scale: float):
    """To the dense sum of its host."""
    with job(COMPRESSED, SLOTS, 4, transports=hosts(2, 2), find_unused=True, scale=lambda: scale) as running:
        # two steps, so that both halves of the double buffer are in use
        for step in (0, 5):
            running.step([[scale * grad for grad in own] for own in draw(SLOTS, 4, step)])
        kept = left(running)
        # one group, whose leader has the first one's residual alone
        running.install(plan_of(SLOTS, gw.FP32(), gw.NoMemory(), gw.AllReduce(), groups=1))
        for step in range(1, 4):
            grads = draw(SLOTS, 4, step)
            sent: list[list[Tensor | None]] = [[scale * grad for grad in own] for own in grads]
            # rank 1, which has the second group's residual, lacks a gradient of the first
            sent[1][0], grads[1][0] = None, torch.zeros(7, 5)
            once = [torch.zeros_like(k) for k in kept] if step > 1 else kept
            means = running.step(sent)  # pyright: ignore[reportArgumentType]
            found = [m / scale for m in means[0]]
            close(found, [m + k for m, k in zip(mean(grads), once, strict=True)], gw.FP32())


def test_small_state_that_is_not_finite_spoils_the_step(monkeypatch: pytest.MonkeyPatch):
    """Though all that was sent is finite."""
    stage = SlotState.stage

    def spoilt(state: SlotState, name: str, values: Sequence[Tensor], largest: Tensor | None = None) -> None:
        stage(state, name, [torch.full_like(value, torch.nan) for value in values])

    with job(plan_of(SLOTS, gw.PowerSGD(1), gw.Residual(), gw.AllReduce()), SLOTS, 2) as running:
        monkeypatch.setattr(SlotState, "stage", spoilt)
        running.step(given(0))
        assert [runtime.stats().skipped for runtime in running.runtimes] == [1, 1]
