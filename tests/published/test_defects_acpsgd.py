"""The defects of ACP-SGD's published code (`acpsgd.py`), by their numbers in the notes, and those of torch's PowerSGD
hook: what went wrong there must not here."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradwire as gw
from gradwire.compressors import LowRank
from tests.support.harness import Job, draw, exchange_of, job, plan_of, run, slots_of, total
from tests.support.states import through_a_file

pytestmark = pytest.mark.usefixtures("one_rank")
both = pytest.mark.parametrize("compressor", [gw.ACPSGD(2), gw.PowerSGD(2)], ids=str)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(6, 8, 3), nn.Flatten(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 20))


def inputs(step: int = 0) -> Tensor:
    return torch.randn(5, 6, 4, 4, generator=torch.Generator().manual_seed(step))


def distributed(model: nn.Module, compressor: LowRank, **options: Any) -> gw.DistributedOptimizer:
    """One of two ranks whose peer has the same gradients: a mean is what this rank sent, twice over."""
    inner = options.pop("inner", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    return gw.DistributedOptimizer(inner, model, compressor, transport=gw.SizeRecorder(world=2), **options)


def local_gradients(model: nn.Module, *batches: Tensor) -> list[Tensor]:
    loss = torch.stack([model(batch).square().sum() for batch in batches]).sum()
    return list(torch.autograd.grad(loss, list(model.parameters())))


def conserved(model: nn.Module, optimizer: gw.DistributedOptimizer, grads: list[Tensor], rtol: float = 1e-4) -> None:
    """What was not sent, of a first step's gradients, is in the memory: half of it on each rank."""
    state = optimizer.handle.state_dict()
    for (name, parameter), grad in zip(model.named_parameters(), grads, strict=True):
        assert parameter.grad is not None
        kept = parameter.grad.float() + 2 * state[f"{name}//residual"]
        torch.testing.assert_close(kept, grad.float(), rtol=rtol, atol=rtol * float(grad.abs().max()))


@both
def test_1_all_ranks_start_from_the_same_factors_whatever_their_seeds(compressor: LowRank):
    """P and Q came from each rank's own random numbers, and replicas drifted apart."""
    slots, states = slots_of({"a": torch.empty(9, 12), "b": torch.empty(14, 8)}), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with job(plan_of(slots, compressor, gw.Residual(), gw.AllReduce()), slots, 2) as running:
            states += running.states()
            for step in range(4):
                first, second = running.step(draw(slots, 2, step))
                assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert any("//shared/" in key for key in states[0])
    assert all(torch.equal(states[0][key], state[key]) for state in states for key in state if "//" in key)


@both
def test_2_accumulated_gradients_are_compressed_once(compressor: LowRank):
    """Each backward compressed, and fed back, what the one before had sent already."""
    model = network()
    optimizer = distributed(model, compressor)
    batches = [inputs(step) for step in range(3)]
    expected = local_gradients(model, *batches)
    for index, batch in enumerate(batches):
        with optimizer.no_sync() if index < 2 else nullcontext():
            model(batch).square().sum().backward()
    assert optimizer.handle.stats().steps == 1
    conserved(model, optimizer, expected)


@both
def test_3_an_unused_parameter_stays_where_it_is(compressor: LowRank):
    """It raised on the missing gradient or moved the weight by a product of stale random factors."""
    model = nn.ModuleDict({"used": nn.Linear(24, 20), "unused": nn.Linear(24, 20)})
    before = [p.detach().clone() for p in model["unused"].parameters()]
    optimizer = distributed(model, compressor, find_unused_parameters=True)
    for step in range(4):
        optimizer.zero_grad()
        model["used"](torch.randn(4, 24, generator=torch.Generator().manual_seed(step))).square().sum().backward()
        optimizer.step()
    for parameter, old in zip(model["unused"].parameters(), before, strict=True):
        assert parameter.grad is None
        assert torch.equal(parameter, old)


@both
def test_3_a_parameter_that_one_rank_did_not_use_is_still_reduced(compressor: LowRank):
    """Its group was never reduced there, and the ranks went apart."""
    slots = slots_of({"a": torch.empty(9, 12), "b": torch.empty(9, 12)})
    with job(
        plan_of(slots, compressor, gw.Residual(), gw.AllReduce(), groups=1), slots, 2, find_unused=True
    ) as running:
        for step in range(4):
            grads: list[list[Tensor | None]] = [list(own) for own in draw(slots, 2, step)]
            grads[step % 2][1] = None
            before, means = total(running.state("residual")), running.step(grads)
            assert all(torch.equal(a, b) for a, b in zip(*means, strict=True))
            given = grads[1 - step % 2][1]
            assert given is not None
            after = total(running.state("residual"))[1] + means[0][1]
            torch.testing.assert_close(after, before[1] + given.double() / 2, rtol=1e-4, atol=1e-4)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_4_gradients_of_any_precision(compressor: LowRank, dtype: torch.dtype):
    """The factors were float32, and a product with anything else raised."""
    model = network().to(dtype)
    optimizer = distributed(model, compressor)
    expected = local_gradients(model, inputs().to(dtype))
    model(inputs().to(dtype)).square().sum().backward()
    optimizer.step()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())
    conserved(model, optimizer, expected, rtol=0.02)


@both
def test_5_several_parameter_groups(compressor: LowRank):
    """Without named_parameters their names collided."""
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": [*model[2].parameters()]}]
    inner = torch.optim.SGD([*groups, {"params": model[4].parameters(), "lr": 0.0}], lr=0.1)
    optimizer = distributed(model, compressor, inner=inner)
    before = [p.detach().clone() for p in model.parameters()]
    model(inputs()).square().sum().backward()
    optimizer.step()
    for parameter, old, rate in zip(model.parameters(), before, [0.5, 0.5, 0.1, 0.1, 0.0, 0.0], strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.detach(), old - rate * parameter.grad)


@both
def test_6_channels_last(compressor: LowRank):
    """`view` refused such gradients."""
    model = network().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    optimizer = distributed(model, compressor)
    expected = local_gradients(model, inputs())
    model(inputs()).square().sum().backward()
    conserved(model, optimizer, expected)


@both
def test_7_clipping_clips_what_is_applied(compressor: LowRank):
    """It clipped the local gradients, which `step` then overwrote."""
    model = network()
    optimizer = distributed(model, compressor)
    before = [p.detach().clone() for p in model.parameters()]
    model(inputs()).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    moved = torch.cat([(p - old).detach().flatten() for p, old in zip(model.parameters(), before, strict=True)])
    torch.testing.assert_close(moved.norm(), torch.tensor(0.1 * 0.25), rtol=1e-4, atol=0)


@both
def test_8_optimizer_hooks_fire_once_a_step(compressor: LowRank):
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = distributed(model, compressor, inner=inner)
    fired = []
    inner.register_step_pre_hook(lambda *_: fired.append("inner"))
    optimizer.register_step_pre_hook(lambda *_: fired.append("outer"))
    for _ in range(2):
        model(inputs()).square().sum().backward()
        optimizer.step()
    assert fired == ["outer", "inner"] * 2


@both
@pytest.mark.parametrize("steps", [1, 2])
def test_8_a_resumed_job_knows_factors_errors_and_whose_turn_it_is(compressor: LowRank, steps: int):
    """None of these was in its state_dict; torch's hook cannot be loaded safely, nor resumed with other buckets."""

    def step(running: Job, index: int) -> list[Tensor]:
        return running.step(draw(slots, 2, index))[0]

    slots = slots_of({"a": torch.empty(9, 12), "b": torch.empty(14, 8), "c": torch.empty(9)})
    with job(plan_of(slots, compressor, gw.Residual(), gw.AllReduce(), groups=2), slots, 2) as running:
        for index in range(steps):
            step(running, index)
        saved = [through_a_file(state) for state in running.states()]
        expected = [step(running, index) for index in (7, 8)]
    with job(plan_of(slots, compressor, gw.Residual(), gw.AllReduce(), groups=1), slots, 2) as resumed:
        resumed.load(saved)
        for index, means in zip((7, 8), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(step(resumed, index), means, strict=True))


@both
def test_9_loss_scaling_works_and_a_skipped_step_leaves_no_trace(compressor: LowRank):
    """Its AMP example called a method that did not exist."""
    model = network()
    optimizer = distributed(model, compressor)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for bad in (False, True, False):
        optimizer.zero_grad()
        before = [p.detach().clone() for p in model.parameters()]
        state = optimizer.handle.state_dict()
        scaler.scale(model(inputs() * (torch.nan if bad else 1.0)).square().mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        stayed = [torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
        assert all(stayed) if bad else not any(stayed)
        if bad:
            after = optimizer.handle.state_dict()
            assert all(torch.equal(state[key], after[key]) for key in state.keys() - {"step", "about"})


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@both
def test_10_equal_shapes_share_one_orthogonalisation(compressor: LowRank):
    """It called QR once per tensor."""
    slots = slots_of({str(i): torch.empty(20, 24) for i in range(12)})
    transport = gw.SizeRecorder(world=2)
    group = plan_of(slots, compressor, gw.Residual(), gw.AllReduce(), groups=1).groups[0]
    exchange = exchange_of(group, slots, transport)
    with Count() as count:
        run(exchange, draw(slots, 1, 0)[0], transport)
    assert sum("linalg_qr" in call for call in count.calls) == 1


def test_fusion_leaves_no_stubs_between_full_groups():
    """Next-fit closed a buffer before what would overflow it: every third of BERT-Large's held one small tensor. Here
    a group is closed once it is worth a message, in bytes before compression: so the rate scales the threshold. Only
    the last are smaller, each at least half of the one before it."""
    shapes = [(1024, 1024), (1024,), (1024, 1024), (1024, 4096), (4096,), (1024, 1024)] * 8
    slots = slots_of({str(i): torch.empty(shape, device="meta") for i, shape in enumerate(shapes)})
    numel = {slot.name: slot.numel for slot in slots}
    sizes = [sum(numel[name] for name in group.slots) for group in gw.plans.uniform(slots, gw.ACPSGD()).groups]
    assert len(sizes) <= 12
    full = sum(numel.values()) // 8
    assert all(size >= min(full, (1 << 18) << i) for i, size in enumerate(reversed(sizes[1:])))
