"""What must hold between real processes over gloo: each scenario runs on all ranks of a group of its own.

`python -m tests.processes.launched tests.processes.scenarios NAME`, on each rank, runs one.
"""

import copy
import gc
import io
import random
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from socket import gethostname
from zlib import crc32

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradwire as gw
from gradwire import tuner
from gradwire.compressors import Parts
from gradwire.ops.lazy_sum import LazySum
from gradwire.transports.connections import Connections
from tests.support.states import earlier
from tests.support.waiting import wait_until

SCENARIOS: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {}
COMPRESSORS = [
    gw.FP32(), gw.FP16(), gw.BF16(), gw.TopK(0.05), gw.RandomK(0.05), gw.DGC(0.05), gw.QSGD(block=64),
    gw.TernGrad(block=64), gw.SignSGD(), gw.EFSignSGD(block=64), gw.OneBit(block=64), gw.Signum(), gw.PowerSGD(2),
    gw.ACPSGD(2),
]  # fmt: skip


def scenario(*worlds: int, long: bool = False):
    """Runs a function on so many ranks; a long one with `make test-all` alone."""

    def register(function):
        SCENARIOS[function.__name__] = (function, worlds, long)
        return function

    return register


# What the scenarios train


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 5))


def batch(step: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 20, generator=generator, dtype=torch.float32)
    return inputs, torch.randint(0, 5, (8,), generator=generator)


def train(module: nn.Module, steps: int = 5, first: int = 0, optimizer=None, model=None) -> list[float]:
    optimizer = optimizer or torch.optim.SGD((model or module).parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(first, first + steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in module.parameters()])


def same_on_all_ranks(tensor: Tensor) -> bool:
    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, tensor)
    return all(torch.equal(copies[0], other) for other in copies)


def dense_ddp(steps: int = 5) -> Tensor:
    ddp = DistributedDataParallel(network())
    train(ddp, steps)
    return flat(ddp)


def refused(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call()


# DDP


@scenario(2, 3)
def replicas_stay_the_same_with_ddp() -> None:
    collectives = gw.SplitGather(), gw.Exclusive(), gw.LeaderIndices(), gw.GlobalTopK(), gw.OkTopk(rebalance=2)
    pairings = [
        *((compressor, None, None) for compressor in COMPRESSORS), (gw.TopK(0.1), gw.DGCMemory(), gw.AllGather()),
        (gw.RandomK(0.1), gw.DGCMemory(clip=1.0), gw.AllReduce()), (gw.QSGD(), gw.Residual(), gw.ScatterReduce()),
        (gw.EFSignSGD(), gw.Residual(0.9), gw.ScatterReduce()),
        *((gw.TopK(0.1), None, communicator) for communicator in collectives),
    ]  # fmt: skip
    for compressor, memory, communicator in pairings:
        ddp = DistributedDataParallel(network(), bucket_cap_mb=0.01)
        handle = gw.attach(ddp, compressor, memory=memory, communicator=communicator)
        losses = train(ddp, 6, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.02))
        assert losses[-1] < 3, (compressor, memory, communicator)
        assert same_on_all_ranks(flat(ddp)), (compressor, memory, communicator)
        handle.detach()


@scenario(2)
def another_default_dtype_changes_nothing() -> None:
    for compressor in (gw.PowerSGD(2), gw.TopK(0.05), gw.PowerSGD(2, bits=4)):
        trained = [trained_under(dtype, compressor) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
        assert torch.equal(trained[0], trained[1]), compressor
        assert torch.equal(trained[0], trained[2]), compressor
        assert same_on_all_ranks(trained[0]), compressor


def trained_under(dtype: torch.dtype, compressor) -> Tensor:
    """A model of float32 that is trained while this is the default."""
    ddp = DistributedDataParallel(network())
    torch.set_default_dtype(dtype)
    try:
        handle = gw.attach(ddp, compressor)
        train(ddp, 4)
        handle.load_state_dict(handle.state_dict())
        train(ddp, 2, first=4)
        handle.verify()
        handle.detach()
    finally:
        torch.set_default_dtype(torch.float32)
    return flat(ddp)


@scenario(3)
def the_automatic_plan_is_the_same_everywhere() -> None:
    steps = tuner.CHOOSING_STEPS + 10
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, candidates=[gw.BF16(), gw.TopK(0.1)])
    train(ddp, steps)
    module = network()
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = gw.DistributedOptimizer(inner, module, candidates=[gw.QSGD()])
    train(module, steps, optimizer=optimizer)
    for trained, its in ((ddp, handle), (module, optimizer.handle)):
        assert same_on_all_ranks(flat(trained))
        assert "was predicted for the best" in its.stats().account  # it may be planning anew, where steps became slower
        assert same_on_all_ranks(torch.tensor(list(sha256(its.plan.to_json().encode()).digest())))


class Turns(gw.Controller):
    """Leaves every second pair of steps to DDP."""

    def decide(self, seen: gw.Observation):
        assert not seen.plan.native or seen.seconds > 0
        return self.compressed if seen.plan.native else gw.NativeRequest(2)

    def begin(self, plan: gw.Plan) -> gw.Plan:
        self.compressed = plan
        return plan


@scenario(2, 3)
def what_is_accumulated_counts_while_native_plans_come_and_go() -> None:
    runs = []
    for controller in (None, Turns()):
        ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
        if controller:
            gw.attach(ddp, gw.FP32(), controller=controller)
        runs.append(late_branch_gradients(ddp, ddp.no_sync, steps=9))
    torch.testing.assert_close(*runs)


def accumulated(ddp: DistributedDataParallel) -> Tensor:
    """After steps of three micro-batches."""
    for step in range(7):
        ddp.zero_grad(set_to_none=step % 3 == 0)
        for part in range(3):
            inputs, targets = batch(10 * step + part)
            with ddp.no_sync() if part < 2 else nullcontext():
                nn.functional.cross_entropy(ddp(inputs), targets).backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p.sub_(p.grad, alpha=0.1)
    return flat(ddp)


@scenario(2)
def a_ddp_that_reduces_without_buckets_is_refused() -> None:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        ddp = DistributedDataParallel(network())
    refused(ValueError, 'was made under optimize_ddp = "python_reducer"', lambda: gw.attach(ddp, gw.TopK(0.1)))


class Region(nn.Module):
    """A layer as torch.compile wraps it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._orig_mod = layer

    def forward(self, x: Tensor) -> Tensor:
        return self._orig_mod(x)


def with_regions(ddp: DistributedDataParallel) -> DistributedDataParallel:
    """A second DDP with the first one's reducer, hooks and layers, as Accelerate makes it to compile each layer."""
    made = DistributedDataParallel.__new__(DistributedDataParallel)
    made.__dict__.update(ddp.__dict__)
    made._modules = {}
    made.add_module("module", nn.Sequential(*map(Region, ddp.module)))
    made.__dict__["_orig_mod"] = ddp
    return made


@scenario(2)
def a_copy_of_ddp_whose_regions_are_compiled_trains_as_ddp_does() -> None:
    ends = []
    for make in (lambda ddp: ddp, with_regions):
        ddp = make(DistributedDataParallel(network()))
        handle = gw.attach(ddp, gw.TopK(0.1))
        accumulated(ddp)
        assert handle.stats().steps == 7
        # what is paused, and what DDP reduces by itself
        before = handle.state_dict()
        with handle.paused():
            cross_entropy(ddp, 7).backward()
        after, compressed = handle.state_dict(), handle.plan
        assert all(torch.equal(before[key], after[key]) for key in before)
        for plan in (gw.NATIVE, compressed):
            handle.replan(plan)
            train(ddp, 3)
        assert same_on_all_ranks(flat(ddp))
        ends.append((flat(ddp), handle.state_dict()))
    (plain, state), (copied, others) = ends
    assert torch.equal(plain, copied)
    assert state.keys() == others.keys()


@scenario(2, 3)
def ddp_reduces_by_itself_where_the_plan_is_native() -> None:
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.005, "find_unused_parameters": True}):
        ddp = DistributedDataParallel(network(), **options)
        handle = gw.attach(ddp, gw.FP32(), controller=Turns())
        train(ddp, 12)
        torch.testing.assert_close(flat(ddp), dense_ddp(12))
        assert handle.stats().steps == 12
        assert handle.stats().wire_bytes >= handle.stats().dense_bytes
        handle.detach()
        gw.attach(ddp, gw.TopK(0.1))  # the one that reduced last
        train(ddp, 3)
        assert same_on_all_ranks(flat(ddp))
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, gw.FP32(), controller=Turns())
    torch.testing.assert_close(accumulated(ddp), accumulated(DistributedDataParallel(network())))


@scenario(2)
def where_the_plan_is_native_steps_count_not_forward_passes() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.FP32(), controller=Turns())
    for step in range(9):
        (inputs, targets), (others, _) = batch(step), batch(step + 100)
        (nn.functional.cross_entropy(ddp(inputs), targets) + ddp(others).square().mean()).backward()
        if dist.get_rank() == step % 2 and step < 8:
            ddp(inputs)
    assert handle.stats().steps == 9
    assert same_on_all_ranks(torch.cat([p.grad.flatten() for p in ddp.parameters()]))


@scenario(2)
def a_native_step_is_not_taken_back_though_no_forward_pass_was_seen() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.NATIVE)
    ddp.forward(batch(0)[0]).sum().backward()
    handle.skip()
    assert handle.stats().steps == 1


@scenario(2)
def join_is_refused_where_the_plan_is_native() -> None:
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, gw.FP32(), controller=Turns())
    with ddp.join():
        refused(RuntimeError, "name a compressor", lambda: train(ddp, 4))
    # one that was native before, of a controller or of the user
    controlled, own = (DistributedDataParallel(network()) for _ in range(2))
    handle = gw.attach(controlled, gw.FP32(), controller=Turns())
    train(controlled, 4)
    assert handle.plan == gw.NATIVE
    gw.attach(own, gw.NATIVE)
    train(own, 2)
    for each in (controlled, own):
        with each.join():
            refused(RuntimeError, "name a compressor, such as gw.FP32()", lambda each=each: train(each, 4))


@scenario(2)
def a_native_plan_takes_no_memory_but_what_memories_hold() -> None:
    """DDP's old buckets and all scratch are free."""
    for memory in (gw.Residual(), gw.Residual(dtype=torch.bfloat16)):
        made, halves = native_bytes(memory), 2 * memory.residual_dtype.itemsize * 500 * 400
        assert halves <= made < halves + 500 * 400, f"{made:,} bytes, and {memory} needs {halves:,}"


def native_bytes(memory: gw.Residual) -> int:
    """What a job has made, when its plan has become native."""
    ddp = DistributedDataParallel(nn.Linear(500, 400))
    ddp(torch.ones(3, 500)).sum().backward()
    before = float_bytes()
    handle = gw.attach(ddp, gw.TopK(0.1), memory=memory)
    for plan in (handle.plan, gw.NATIVE):
        handle.replan(plan)
        for _ in range(5):
            ddp(torch.ones(3, 500)).sum().backward()
    handle.state_dict()  # behind what the worker does
    return float_bytes() - before


def float_bytes() -> int:
    """Bytes of all floating-point numbers that Python knows of: gradients, state and scratch, not tables."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter) and each.is_floating_point()]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@scenario(2)
def what_memories_hold_survives_a_native_plan() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1), controller=Turns())
    train(ddp, 3)
    before = handle.state_dict()
    assert handle.plan == gw.NATIVE
    train(ddp, 1, first=3)
    with pytest.raises(ValueError, match="DDP reduces by itself now"):
        handle.trace()
    after = handle.state_dict()
    for key in (key for key in before if key.endswith("residual")):
        assert torch.equal(before[key], after[key])
    assert any(before[key].any() for key in before if key.endswith("residual"))
    # DDP's own step counts, once, whether a state is saved or loaded behind it
    assert int(after["step"]) == 4
    handle.load_state_dict(after)
    train(ddp, 4, first=4)
    assert int(handle.state_dict()["step"]) == 8
    assert same_on_all_ranks(flat(ddp))


@scenario(2, 3)
def accumulation_sends_the_sum_once() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.FP32())
    torch.testing.assert_close(accumulated(ddp), accumulated(DistributedDataParallel(network())))
    assert handle.stats().steps == 7


class Branches(nn.Module):
    """Uses `left` or `right` as told, and `never` never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.never = nn.Linear(20, 5), nn.Linear(20, 5), nn.Linear(20, 5)

    def forward(self, x: Tensor, left: bool, right: bool) -> Tensor:
        return sum(branch(x) for branch, on in ((self.left, left), (self.right, right)) if on)


def branch_gradients(compressor, steps: int = 3) -> list[Tensor | None]:
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    if compressor:
        gw.attach(ddp, compressor)
    for step in range(steps):
        inputs, targets = batch(step)
        ddp.zero_grad()
        nn.functional.cross_entropy(
            ddp(inputs, dist.get_rank() == 0 or step == 0, dist.get_rank() != 0 or step < 2), targets
        ).backward()
    return [p.grad for p in ddp.parameters()]


@scenario(2, 3)
def unused_parameters_are_as_in_ddp() -> None:
    for ours, theirs in zip(branch_gradients(gw.FP32()), branch_gradients(None), strict=True):
        if theirs is None:
            assert ours is None
        else:
            torch.testing.assert_close(ours, theirs)


def late_branch_gradients(module: nn.Module, no_sync, steps: int = 3) -> list[Tensor]:
    """Of all steps: a branch that only the micro-batches that accumulate use, on rank 0 alone."""
    seen = []
    for step in range(steps):
        module.zero_grad()
        for part in range(3):
            inputs, targets = batch(10 * step + part)
            with no_sync() if part < 2 else nullcontext():
                loss = nn.functional.cross_entropy(module(inputs, part < 2 and dist.get_rank() == 0, True), targets)
                loss.backward()
        seen += [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]
    return seen


@scenario(2, 3)
def what_was_accumulated_counts_though_the_last_micro_batch_does_not_use_it() -> None:
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    expected = late_branch_gradients(ddp, ddp.no_sync)
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    gw.attach(ddp, gw.FP32())
    module = Branches()
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = gw.DistributedOptimizer(inner, module, gw.FP32(), find_unused_parameters=True)
    for ours in (late_branch_gradients(ddp, ddp.no_sync), late_branch_gradients(module, optimizer.no_sync)):
        torch.testing.assert_close(ours, expected)
        assert same_on_all_ranks(torch.cat([grad.flatten() for grad in ours]))


def gradients_on_top_of_others(module: nn.Module) -> list[Tensor | None]:
    """Of two passes without zero_grad() between them, the second one with a branch that rank 0 alone uses."""
    for step in range(2):
        inputs, targets = batch(step)
        nn.functional.cross_entropy(module(inputs, True, step == 0 or dist.get_rank() == 0), targets).backward()
    return [p.grad for p in module.parameters()]


@scenario(2)
def a_gradient_that_an_earlier_pass_has_left_counts_where_the_next_one_has_none() -> None:
    expected = gradients_on_top_of_others(DistributedDataParallel(Branches(), find_unused_parameters=True))
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    gw.attach(ddp, gw.FP32())
    module = Branches()
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    gw.DistributedOptimizer(inner, module, gw.FP32(), find_unused_parameters=True)
    for ours in map(gradients_on_top_of_others, (ddp, module)):
        torch.testing.assert_close(ours, expected)
        assert same_on_all_ranks(torch.cat([grad.flatten() for grad in ours[:4]]))


@scenario(2)
def a_backward_pass_that_ddp_ignores_is_ignored() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1))
    for step in range(4):
        train(ddp, 1, first=step)
        if dist.get_rank() == 0:
            ddp.module(batch(step)[0]).sum().backward()
    assert handle.stats().steps == 4
    assert same_on_all_ranks(flat(ddp))


@scenario(2)
def a_parameter_unused_everywhere_keeps_its_memory() -> None:
    ddp = DistributedDataParallel(Branches(), find_unused_parameters=True)
    handle = gw.attach(ddp, gw.EFSignSGD(block=64), dense=lambda name, parameter: False)
    for step in range(3):
        if step == 2:
            before = handle.state_dict()
        inputs, targets = batch(step)
        ddp.zero_grad()
        nn.functional.cross_entropy(ddp(inputs, True, step < 2), targets).backward()
    after = handle.state_dict()
    assert torch.equal(before["right.weight//residual"], after["right.weight//residual"])
    assert before["right.weight//residual"].any()
    assert not torch.equal(before["left.weight//residual"], after["left.weight//residual"])


class Odd(nn.Module):
    """Shared, frozen, zero-size, channels-last, bfloat16 and scalar parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.shared = nn.Linear(8, 8)
        self.again = self.shared
        self.narrow = nn.Linear(8, 5).bfloat16()
        self.empty = nn.Parameter(torch.empty(0, 7))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x).mean((2, 3))
        h = self.again(torch.relu(self.shared(self.frozen(h)))) * self.scale + self.empty.sum()
        return self.narrow(h.bfloat16()).float()


def train_odd(compressor, **options) -> Tensor:
    ddp = DistributedDataParallel(Odd(), **options)
    if compressor:
        gw.attach(ddp, compressor)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(5):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        inputs = torch.randn(4, 4, 6, 6, generator=generator).to(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        nn.functional.cross_entropy(ddp(inputs), torch.arange(4)).backward()
        optimizer.step()
    assert same_on_all_ranks(flat(ddp))
    return flat(ddp)


@scenario(2, 3)
def odd_parameters_are_as_in_ddp() -> None:
    torch.testing.assert_close(train_odd(gw.FP32()), train_odd(None), atol=1e-2, rtol=1e-2)  # bf16 is summed in fp32
    for compressor in (gw.TopK(0.1), gw.PowerSGD(2), gw.EFSignSGD(block=8)):
        train_odd(compressor, bucket_cap_mb=0.001)
        train_odd(compressor, gradient_as_bucket_view=True)


# Tensors that are not dense, and of every type


TYPES = [
    torch.bool, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.int64, torch.uint64, torch.int4,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


class Gaps(nn.Module):
    """Buffers and parameters, some of them trained, with gaps, repetitions and shared memory, and of every type."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(8, 8)
        self.rows = nn.Parameter(torch.linalg.svd(torch.randn(8, 8))[2].T.contiguous().T[:4])
        self.turned = nn.Parameter(torch.randn(4, 8).T)
        self.frozen = nn.Parameter(torch.randn(3, 1, 5).expand(3, 2, 5), requires_grad=False)
        self.table: Tensor
        made = {
            "expanded": torch.randn(4096, 1).expand(4096, 4), "once": torch.randn(()).expand(5, 6),
            "every_other": torch.randn(6, 10)[:, ::2], "overlapping": torch.randn(10).unfold(0, 4, 2),
            "images": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), "scalar": torch.randn(()),
            "empty": torch.empty(0, 3), "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
            "table": torch.randn(4, 6),
        }  # fmt: skip
        for dtype in TYPES:
            numbers = torch.randint(0, 2 if dtype == torch.bool else 120, (3, 4 * dtype.itemsize), dtype=torch.uint8)
            made[f"of_{str(dtype)[6:]}"] = numbers.view(dtype)
        for name, tensor in made.items():
            self.register_buffer(name, tensor)
        self.register_buffer("part", self.table[:, 1::2], persistent=False)
        self.register_buffer("every_other_int16", torch.randint(0, 999, (4, 6), dtype=torch.int16)[::2, ::3])

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) @ self.rows.T @ self.turned.T

    def tensors(self) -> dict[str, Tensor]:
        return dict([*self.named_parameters(), *self.named_buffers()])

    def loss(self, step: int) -> Tensor:
        return (
            self(torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + dist.get_rank())))
            .square()
            .mean()
        )


def bits(tensor: Tensor) -> bytes:
    plain = tensor.detach().resolve_conj()
    plain = plain.view(torch.uint8) if plain.element_size() == 1 else plain
    return plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def check_is_rank_0s(model: Gaps) -> None:
    mine, first = model.tensors(), Gaps(0).tensors()
    assert [name for name in mine if bits(mine[name]) != bits(first[name])] == []
    assert [name for name in mine if mine[name].stride() != first[name].stride()] == []
    model.table += 1
    assert torch.equal(model.part, model.table[:, 1::2])


def optimizers_of(model: nn.Module) -> list[Callable[[], gw.DistributedOptimizer | gw.LocalSteps]]:
    inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return [
        lambda: gw.DistributedOptimizer(inner, model, gw.TopK(0.1)), lambda: gw.LocalSteps(inner, model, inner_steps=2)
    ]  # fmt: skip


@scenario(2, 3)
def all_that_a_model_holds_is_rank_0s_however_it_lies_in_memory() -> None:
    for which in range(2):
        model = Gaps(dist.get_rank())
        optimizer = optimizers_of(model)[which]()
        check_is_rank_0s(model)
        for step in range(4):
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
        assert same_on_all_ranks(flat(model))


@scenario(3)
def parameters_with_gaps_are_compared_and_mended() -> None:
    for which in range(2):
        model = Gaps(0)
        handle = optimizers_of(model)[which]().handle
        assert handle.verify() == []
        held = handle._front_end.held()
        with torch.no_grad():
            held["rows"][0, dist.get_rank()] += float(dist.get_rank() == 1)
            held["turned"][dist.get_rank(), 0] += float(dist.get_rank() == 2)
        refused(RuntimeError, "has other values on rank", handle.verify)
        assert sorted(handle.verify(heal=True)) == ["rows", "turned"]
        assert bits(held["rows"]) == bits(Gaps(0).rows)
        assert handle.verify() == []


@scenario(2)
def values_that_cannot_be_sent_are_named() -> None:
    odd = {"sparse": torch.eye(3).to_sparse(), "on no device": torch.empty(3, device="meta")}
    for text, tensor in odd.items():
        for which in range(2):
            model = network()
            model.register_buffer("odd", tensor)
            refused(ValueError, f"'odd' is {text}", optimizers_of(model)[which])


@scenario(2, 3)
def values_of_another_shape_or_type_on_some_rank_are_named() -> None:
    last = dist.get_rank() == dist.get_world_size() - 1
    shapes = torch.zeros(3 + last, 2), torch.zeros(3, 2, dtype=torch.int16 if last else torch.int8)
    for tensor in (*shapes, torch.zeros(3, 1 + last).expand(3, 2)):
        for which in range(2):
            model = network()
            model.register_buffer("odd", tensor)
            refused(ValueError, "the ranks differ in 'odd': ", optimizers_of(model)[which])


# Complex parameters, and where DDP has gradients


class Complex(nn.Module):
    """Complex parameters of every sort, one of them with a gradient that is a lazy conjugate, beside a real one."""

    def __init__(self, seed: int = 0, real: bool = True) -> None:
        super().__init__()
        draw = partial(torch.randn, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))
        self.weight, self.bias = nn.Parameter(draw(8, 12)), nn.Parameter(draw(8))
        self.turned = nn.Parameter(draw(6, 8).T)
        self.conjugate, self.scale = nn.Parameter(draw(8, 12)), nn.Parameter(draw(()))
        self.filters = nn.Parameter(draw(2, 3, 4, 4).to(memory_format=torch.channels_last))
        if real:
            self.images = nn.Parameter(draw(2, 3, 4, 4).real.contiguous(memory_format=torch.channels_last))
            self.vector = nn.Parameter(draw(12).real.clone())

    def forward(self, x: Tensor) -> Tensor:
        h = x @ (self.weight.T + self.conjugate.conj().T) * self.scale + self.bias
        images = (self.filters * self.filters.conj()).real
        if hasattr(self, "images"):
            h, images = h + (x * self.vector).sum(), images * self.images
        return (h @ self.turned).abs().square().mean() + (images * x.real.mean()).sum()


def complex_batch(step: int) -> Tensor:
    draw = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(4, 12, dtype=torch.complex64, generator=draw)


def real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()


def complex_trained(
    how: str, compressor: object = None, steps: int = 3, **options
) -> tuple[nn.Module, gw.Handle | None]:
    """The model after some steps."""
    model = module = Complex()
    inner, handle = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5), None
    optimizer: object = inner
    if how == "ddp":
        module = DistributedDataParallel(model, bucket_cap_mb=0.001, **options)
        handle = gw.attach(module, compressor) if compressor else None
    elif how == "optimizer":
        optimizer = gw.DistributedOptimizer(inner, model, compressor)
        handle = optimizer.handle
    else:
        optimizer = gw.LocalSteps(inner, model, compressor, inner_steps=1, outer=gw.Outer(1.0, momentum=0))
        handle = optimizer.handle
    for step in range(steps):
        optimizer.zero_grad()
        module(complex_batch(step)).backward()
        optimizer.step()
    return module, handle


@scenario(2, 3)
def complex_parameters_are_trained_as_in_ddp() -> None:
    want = [real(p) for p in complex_trained("ddp")[0].parameters()]
    runs = [
        ("ddp", gw.NATIVE, {}), ("ddp", gw.FP32(), {}), ("ddp", gw.FP32(), {"gradient_as_bucket_view": True}),
        ("ddp", gw.FP32(), {"static_graph": True}), ("ddp", gw.FP32(), {"find_unused_parameters": True}),
        ("optimizer", gw.FP32(), {}), ("local", gw.FP32(), {}),
    ]  # fmt: skip
    for run in runs:
        module, _ = complex_trained(*run[:2], **run[2])
        for mine, ddps in zip(map(real, module.parameters()), want, strict=True):
            torch.testing.assert_close(mine, ddps, msg=lambda text, run=run: f"{run}: {text}")


@scenario(2, 3)
def complex_parameters_are_compressed_by_all_front_ends() -> None:
    for compressor in (gw.TopK(0.1), gw.PowerSGD(2), gw.EFSignSGD(block=8), gw.Quantized(4)):
        for how in ("ddp", "optimizer", "local"):
            module, handle = complex_trained(how, compressor)
            assert all(same_on_all_ranks(real(p)) for p in module.parameters()), (how, compressor)
            assert handle.verify() == []


@scenario(2)
def a_memory_has_each_element_in_its_place_however_it_lies_in_ddps_buckets() -> None:
    for how in ("ddp", "optimizer"):
        _alive, handle = complex_trained(how, gw.TopK(0.5), steps=1)
        own, state = Complex(), handle.state_dict()
        own(complex_batch(0)).backward()
        matrices = ["conjugate", "filters", "images", "turned", "weight"]  # vectors travel dense
        assert sorted(key.removesuffix("//residual") for key in state if key.endswith("//residual")) == matrices
        for name in matrices:
            gradient, kept = real(own.get_parameter(name).grad) / 2, state[f"{name}//residual"]
            assert kept.any(), name
            assert ((kept == 0) | torch.isclose(kept, gradient)).all(), (how, name)


@scenario(3)
def complex_parameters_are_compared_and_mended() -> None:
    for how in ("ddp", "optimizer", "local"):
        _alive, handle = complex_trained(how, gw.TopK(0.1))
        name, held = "filters", handle._front_end.held()
        before = held[name].detach().clone()
        with torch.no_grad():
            held[name][1, 2] += dist.get_rank() == 1
        refused(RuntimeError, "'filters' has other values on rank 1 than on ranks 0, 2", handle.verify)
        assert handle.verify(heal=True) == [name]
        assert torch.equal(held[name], before)


@scenario(2)
def views_static_graph_and_checkpointing_are_plain_ddp_at_fp32() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.net[2:](checkpoint(self.net[:2], x, use_reentrant=False))

    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 0.005}):
        ddp = DistributedDataParallel(Checkpointed(), **options)
        gw.attach(ddp, gw.FP32())
        train(ddp)
        torch.testing.assert_close(flat(ddp), dense_ddp())


@scenario(2)
def dense_groups_are_reduced_where_ddp_wants_them() -> None:
    for compressor, copies in ((gw.FP32(), 0), (gw.FP16(), 1)):
        ddp = DistributedDataParallel(network(), gradient_as_bucket_view=True)
        handle = gw.attach(ddp, compressor, groups=gw.groups.of(count=1))
        train(ddp, 5)
        assert handle._runtime
        (stored,) = handle._runtime._steps.store.groups
        assert stored.fixed
        for index, slot in enumerate(stored.layout.slots):
            parameter = ddp.module.get_parameter(slot.name)
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == stored.fixed.slot(index).data_ptr()
        assert len(stored.buffers._tensors) == copies
        assert same_on_all_ranks(torch.cat([p.grad.flatten() for p in ddp.parameters()]))
        handle.detach()


@scenario(2)
def uneven_inputs_end_with_join() -> None:
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, gw.TopK(0.1))
    with ddp.join():
        train(ddp, 3 + 2 * dist.get_rank())
    assert same_on_all_ranks(flat(ddp))


@scenario(2)
def buffers_are_broadcast_meanwhile() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 5))
    ddp = DistributedDataParallel(model)
    gw.attach(ddp, gw.TopK(0.1))
    train(ddp, 5)
    assert same_on_all_ranks(flat(ddp))


@scenario(2, 4)
def two_rounds_over_many_groups_with_delayed_ranks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(20, 20) for _ in range(12)], nn.Linear(20, 5))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    weights = [name for name, p in model.named_parameters() if p.ndim == 2][::-1]
    biases = tuple(name for name, p in model.named_parameters() if p.ndim == 1)
    groups = [gw.Group((name,), gw.PowerSGD(2), gw.Residual(), gw.AllReduce()) for name in weights]
    plan = gw.Plan((*groups, gw.Group(biases, gw.FP32(), gw.NoMemory(), gw.AllReduce())))
    gw.attach(ddp, plan)
    delay = torch.Generator().manual_seed(dist.get_rank())
    for p in model.parameters():
        p.register_hook(lambda grad: time.sleep(0.004 * torch.rand((), generator=delay).item()))
    train(ddp, 8)
    assert same_on_all_ranks(flat(ddp))


@scenario(2, 3)
def training_goes_on_bit_for_bit_from_what_rank_0_saved_with_the_compressor_alone() -> None:
    """Also where gradients become ready in another order than that in which parameters were registered."""
    for compressor in (gw.TopK(0.05), gw.PowerSGD(2), gw.RandomK(0.1)):
        ddp = DistributedDataParallel(Turned())
        handle = gw.attach(ddp, compressor, groups=gw.groups.of(count=2))
        train(ddp, 4, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
        weights = {k: v.clone() for k, v in ddp.module.state_dict().items()}
        shared = [handle.state_dict(all_ranks=True)]
        train(ddp, 4, first=4, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
        handle.detach()
        dist.broadcast_object_list(shared)

        resumed = DistributedDataParallel(Turned())
        resumed.module.load_state_dict(weights)
        again = gw.attach(resumed, compressor, groups=gw.groups.of(count=2))
        again.load_state_dict(shared[0])
        train(resumed, 4, first=4, optimizer=torch.optim.SGD(resumed.parameters(), lr=0.1))
        assert torch.equal(flat(resumed), flat(ddp)), compressor


class Turned(nn.Module):
    """Uses its layers in another order than that in which they were made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.middle, self.first = nn.Linear(60, 5), nn.Linear(60, 60), nn.Linear(20, 60)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).relu()).relu())


def reloaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@scenario(2)
def a_copy_of_a_ddp_is_a_plain_ddp() -> None:
    for copied in (copy.deepcopy, reloaded):
        for compressor in (gw.TopK(0.1), None):
            ddp = DistributedDataParallel(network())
            handle = gw.attach(ddp, compressor)
            train(ddp, 3, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
            other, plain = copied(ddp), DistributedDataParallel(copy.deepcopy(ddp.module))
            for each in (other, plain):
                train(each, 2)
            assert torch.equal(flat(other), flat(plain))
            assert not torch.equal(flat(other), flat(ddp))
            own = gw.attach(other, gw.TopK(0.1))
            train(other, 2, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
            assert own.stats().steps == 2
            assert same_on_all_ranks(flat(other))
            train(ddp, 1, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.1))
            assert same_on_all_ranks(flat(ddp))
            own.detach()
            handle.detach()


@scenario(2)
def a_model_under_the_optimizer_can_be_averaged_and_saved_whole() -> None:
    module = network()
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), module, gw.TopK(0.1))
    average = torch.optim.swa_utils.AveragedModel(module)
    train(module, 2, optimizer=optimizer)
    average.update_parameters(module)
    for other in (copy.deepcopy(module), reloaded(module), average.module):
        assert torch.equal(flat(other), flat(module))
        other(batch(0)[0]).sum().backward()
        other(batch(0)[0]).sum().backward()  # no rank waits for the other's
    assert optimizer.handle.stats().steps == 2
    train(module, 2, optimizer=optimizer)
    assert same_on_all_ranks(flat(module))


def threads_of_process() -> int:
    """Those of Python and of torch."""
    gc.collect()
    return len(list(Path("/proc/self/task").iterdir()))


@scenario(2)
def who_watches_a_group_opens_no_connection_that_the_next_group_would_count_as_its() -> None:
    group = gw.ProcessGroup.own()
    with Connections() as opened:
        assert group.lost(False) is None
    assert opened._names == set()
    group.close()


@scenario(2)
def many_models_that_were_dropped_leave_no_thread() -> None:
    def one() -> None:
        ddp = DistributedDataParallel(network())
        handle = gw.attach(ddp, gw.TopK(0.1))
        train(ddp, 2)
        assert handle.stats().steps == 2

    one()
    before = threads_of_process()
    for _ in range(5):
        one()
    assert wait_until(lambda: threads_of_process() <= before), "some that ask the store come and go"


@scenario(2)
def detached_is_dense_and_may_attach_again() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1))
    refused(ValueError, "detach()", lambda: gw.attach(ddp, gw.QSGD()))
    handle.detach()
    train(ddp)
    torch.testing.assert_close(flat(ddp), dense_ddp())
    again = gw.attach(ddp, gw.QSGD())
    handle.detach()  # an old handle has no say any more
    train(ddp)
    assert again.stats().steps == 5
    assert same_on_all_ranks(flat(ddp))


@scenario(2)
def a_detached_handle_keeps_the_jobs_figures_and_nothing_of_the_model() -> None:
    def of_ddp(module: nn.Module) -> tuple[nn.Module, gw.Handle, None]:
        ddp = DistributedDataParallel(module)
        return ddp, gw.attach(ddp, gw.TopK(0.1)), None

    def wrapped(make: Callable[..., gw.DistributedOptimizer | gw.LocalSteps], module: nn.Module) -> tuple:
        optimizer = make(torch.optim.SGD(module.parameters(), lr=0.1), module, gw.TopK(0.1))
        return module, optimizer.handle, optimizer

    for make in (
        of_ddp,
        partial(wrapped, gw.DistributedOptimizer),
        partial(wrapped, partial(gw.LocalSteps, inner_steps=2)),
    ):
        for end in "detach", "leave":
            module, handle, optimizer = make(network())
            train(module, 4, optimizer=optimizer)
            before, table = handle.stats(), handle.summary().partition("\n")[2]
            assert before.wire_bytes
            state = handle.state_dict()
            getattr(handle, end)()
            assert (handle.stats(), handle.summary().partition("\n")[2]) == (before, table)
            for call in (
                partial(handle.replan, gw.NATIVE), handle.state_dict, partial(handle.state_dict, all_ranks=True),
                partial(handle.load_state_dict, state), partial(handle.from_first, 1), handle.stragglers, handle.verify,
            ):  # fmt: skip
                refused(ValueError, "detach() ended", call)
            weights = [weakref.ref(parameter) for parameter in module.parameters()]
            del module, optimizer
            gc.collect()
            assert not any(weight() is not None for weight in weights), (make, end)


@scenario(2)
def a_detached_optimizer_takes_no_step() -> None:
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = gw.DistributedOptimizer(inner, model, gw.TopK(0.1))
    train(model, 2, optimizer=optimizer)
    optimizer.handle.detach()
    refused(RuntimeError, "wrap the optimizer anew", lambda: train(model, 1, optimizer=optimizer))
    train(model, 2, optimizer=gw.DistributedOptimizer(inner, model, gw.FP32()))
    assert same_on_all_ranks(flat(model))


@scenario(4)
def hosts_reduce_dense_inside_and_compressed_between() -> None:
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, gw.FP32(), transport=gw.ProcessGroup.by_host(2))
    train(ddp)
    torch.testing.assert_close(flat(ddp), dense_ddp())
    for compressor in (gw.TopK(0.1), gw.PowerSGD(2)):
        ddp = DistributedDataParallel(network())
        gw.attach(ddp, compressor, transport=gw.ProcessGroup.by_host(2))
        train(ddp)
        assert same_on_all_ranks(flat(ddp))


# The optimizer front end


@scenario(2, 3)
def replicas_stay_the_same_with_the_optimizer() -> None:
    for compressor in COMPRESSORS:
        model = network(seed=dist.get_rank())  # rank 0's values are those of all
        optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, compressor)
        train(model, 6, optimizer=optimizer)
        assert same_on_all_ranks(flat(model)), compressor


@scenario(2)
def the_optimizer_does_not_step_by_gradients_that_were_only_accumulated() -> None:
    model = network()
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.TopK(0.1))
    for number in range(10):  # an epoch whose last two batches are no whole step
        with optimizer.no_sync() if number % 4 < 3 else nullcontext():
            cross_entropy(model, number).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    before = flat(model)
    refused(RuntimeError, "has a gradient of no_sync()", optimizer.step)
    assert torch.equal(flat(model), before)
    # after a whole step, and behind one
    cross_entropy(model, 10).backward()
    optimizer.step()
    with optimizer.no_sync():
        cross_entropy(model, 11).backward()
    refused(RuntimeError, "call zero_grad()", optimizer.step)
    for to_none in (True, False):
        optimizer.zero_grad(set_to_none=to_none)
        optimizer.step()
        with optimizer.no_sync():
            cross_entropy(model, 12).backward()
    with optimizer.handle.paused():
        cross_entropy(model, 13).backward()
    refused(RuntimeError, "call zero_grad()", optimizer.step)
    assert same_on_all_ranks(flat(model))


@scenario(2, 3)
def the_optimizer_is_plain_ddp_at_fp32() -> None:
    model = network()
    inner = torch.optim.SGD(
        [{"params": model[:3].parameters()}, {"params": model[3:].parameters(), "lr": 0.05}],
        lr=0.1,
        momentum=0.9,
    )
    optimizer = gw.DistributedOptimizer(inner, model, gw.FP32())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    ddp = DistributedDataParallel(network())
    theirs = torch.optim.SGD(
        [{"params": ddp.module[:3].parameters()}, {"params": ddp.module[3:].parameters(), "lr": 0.05}],
        lr=0.1, momentum=0.9,
    )  # fmt: skip
    their_scheduler = torch.optim.lr_scheduler.StepLR(theirs, 2, 0.5)
    for step in range(6):
        for module, chosen, schedule in ((model, optimizer, scheduler), (ddp, theirs, their_scheduler)):
            inputs, targets = batch(step)
            chosen.zero_grad(set_to_none=step % 2 == 0)
            nn.functional.cross_entropy(module(inputs), targets).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            chosen.step()
            schedule.step()
    torch.testing.assert_close(flat(model), flat(ddp))
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    train(model, 1, optimizer=optimizer)
    assert same_on_all_ranks(flat(model))


@scenario(2)
def the_optimizer_accumulates_and_finds_unused() -> None:
    model = network()
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.FP32())
    total = network()
    for part in range(3):
        with optimizer.no_sync() if part < 2 else nullcontext():
            nn.functional.cross_entropy(model(batch(part)[0]), batch(part)[1]).backward()
        for rank in range(2):
            loss = nn.functional.cross_entropy(total(batch(part, rank)[0]), batch(part, rank)[1])
            (loss / 2).backward()
    for ours, theirs in zip(model.parameters(), total.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)

    branches = Branches()
    optimizer = gw.DistributedOptimizer(
        torch.optim.SGD(branches.parameters(), lr=0.1), branches, gw.FP32(), find_unused_parameters=True
    )
    nn.functional.cross_entropy(branches(batch(0)[0], dist.get_rank() == 0, True), batch(0)[1]).backward()
    assert branches.left.weight.grad is not None
    assert branches.never.weight.grad is None
    strict = Branches()
    gw.DistributedOptimizer(torch.optim.SGD(strict.parameters(), lr=0.1), strict, gw.FP32())
    loss = nn.functional.cross_entropy(strict(batch(0)[0], True, True), batch(0)[1])
    refused(RuntimeError, "find_unused_parameters=True", loss.backward)


def dropped(parameter: Tensor) -> None:
    parameter.grad = None


@scenario(2)
def a_gradient_that_a_users_hook_drops_is_none_on_this_rank() -> None:
    """As in DDP: the mean over the ranks counts it as zero; on no rank, there is none."""
    wanted = DistributedDataParallel(network())
    wanted.module[2].weight.register_post_accumulate_grad_hook(dropped if dist.get_rank() else lambda _: None)
    own = network()
    own[0].weight.register_post_accumulate_grad_hook(dropped)
    own[2].weight.register_post_accumulate_grad_hook(dropped if dist.get_rank() else lambda _: None)
    gw.DistributedOptimizer(torch.optim.SGD(own.parameters(), lr=0.1), own, gw.FP32(), find_unused_parameters=True)
    for model in (wanted, own):
        nn.functional.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    assert own[0].weight.grad is None
    torch.testing.assert_close(own[2].weight.grad, wanted.module[2].weight.grad)

    strict = network()
    strict[2].weight.register_post_accumulate_grad_hook(dropped)
    gw.DistributedOptimizer(torch.optim.SGD(strict.parameters(), lr=0.1), strict, gw.FP32())
    loss = nn.functional.cross_entropy(strict(batch(0)[0]), batch(0)[1])
    refused(RuntimeError, "parameter '2.weight' got no gradient, or a hook set it to None", loss.backward)


# Steps that are not taken


Made = Callable[[], tuple[nn.Module, gw.Handle]]


def skippable(compressor: gw.Compressor) -> list[Made]:
    """A model by each front end that reduces whole gradients."""

    def by_ddp(**options) -> tuple[nn.Module, gw.Handle]:
        ddp = DistributedDataParallel(network(), **options)
        return ddp, gw.attach(ddp, compressor)

    def by_optimizer() -> tuple[nn.Module, gw.Handle]:
        model = network()
        return model, gw.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, compressor).handle

    buckets = {"gradient_as_bucket_view": True, "find_unused_parameters": True, "bucket_cap_mb": 0.005}
    return [by_ddp, partial(by_ddp, **buckets), by_optimizer]


def cross_entropy(model: nn.Module, step: int) -> Tensor:
    return nn.functional.cross_entropy(model(batch(step)[0]), batch(step)[1])


def check_a_spike_is_skipped(make: Made, loss_of: Callable[[nn.Module, int], Tensor]) -> None:
    """A training that skips a step is bit for bit one that never saw it."""
    runs = []
    for spiked in (True, False):
        model, handle = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(7):
            if step == 3 and not spiked:
                continue
            optimizer.zero_grad()
            (loss_of(model, step) * (1e4 if step == 3 else 1)).backward()
            handle.skip() if step == 3 else optimizer.step()
        assert handle.stats().skipped == spiked
        runs.append((list(map(own_part, model.parameters())), handle.state_dict()))
        handle.detach()
    (trained, state), (calm, without) = runs
    assert all(map(torch.equal, trained, calm))
    assert state.keys() == without.keys()
    assert all(torch.equal(state[key], without[key]) for key in state.keys() - {"step", "about"})


def check_paused_passes_leave_no_trace(make: Made, loss_of: Callable[[nn.Module, int], Tensor]) -> None:
    """Between steps, and between the micro-batches of one."""
    runs = []
    for paused in (True, False):
        model, handle = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            with handle.accumulate():
                loss_of(model, 10 + step).backward()
            before = [p.grad for p in model.parameters()]
            if paused:
                with handle.paused():
                    (loss_of(model, 100 + step) * 1e4).backward()
                    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
            assert all(p.grad is grad for p, grad in zip(model.parameters(), before, strict=True))
            loss_of(model, step).backward()
            optimizer.step()
        runs.append((list(map(own_part, model.parameters())), earlier(handle.state_dict()), handle.stats().wire_bytes))
        handle.detach()
        refused(ValueError, "detach() ended the exchange of gradients; attach() again", handle.paused)
        refused(ValueError, "detach() ended the exchange of gradients; attach() again", handle.skip)
    (trained, state, sent), (calm, without, sent_without) = runs
    assert all(map(torch.equal, trained, calm))
    assert all(torch.equal(state[key], without[key]) for key in state)
    assert sent == sent_without


def own_part(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


@scenario(2)
def each_of_several_backward_passes_of_a_step_counts_once() -> None:
    plain = DistributedDataParallel(network())
    for make in (*skippable(gw.FP32()), *skippable(gw.TopK(0.1))):
        plain.zero_grad()
        model, handle = make()
        dense = "TopK" not in str(handle.plan)
        for part in range(3):
            for each in (plain, model):
                cross_entropy(each, part).backward()
            state, wanted = handle.state_dict(), plain.module.named_parameters()
            for mine, (name, want) in zip(model.parameters(), wanted, strict=True):
                # error feedback: all that is not in the mean is in the memories
                lacking = state.get(f"{name}//residual", torch.zeros_like(mine)).clone()
                assert dense or name.endswith("bias") or lacking.any()
                dist.all_reduce(lacking)
                torch.testing.assert_close(mine.grad + lacking, want.grad)
        handle.detach()


@scenario(2)
def a_step_that_is_skipped_leaves_no_trace() -> None:
    for compressor in (gw.TopK(0.05), gw.PowerSGD(2, bits=4)):
        for make in skippable(compressor):
            check_a_spike_is_skipped(make, cross_entropy)
    model = network()
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, gw.TopK(0.05))
    refused(ValueError, "skip() takes back the last step, and there is none", optimizer.skip)


@scenario(2)
def micro_batches_that_were_not_sent_are_not_skipped_by_taking_back_the_step_before() -> None:
    for make in skippable(gw.TopK(0.05)):
        model, handle = make()
        cross_entropy(model, 0).backward()
        kept = handle.state_dict()
        # a loss that is not finite in the first micro-batch of the next step
        model.zero_grad()
        with handle.accumulate():
            cross_entropy(model, 1).backward()
        model.zero_grad()
        refused(ValueError, "accumulated and sent nothing; drop their gradients", handle.skip)
        after = handle.state_dict()
        assert all(torch.equal(kept[key], after[key]) for key in kept)
        # one that is thrown away is none of them, nor is one of a step whose last pass was reduced
        cross_entropy(model, 1).backward()
        with handle.paused():
            cross_entropy(model, 2).backward()
        handle.skip()
        with handle.accumulate():
            cross_entropy(model, 1).backward()
        cross_entropy(model, 2).backward()
        handle.skip()
        assert handle.stats().skipped == 2
        handle.detach()


@scenario(2)
def where_one_rank_has_more_micro_batches_no_rank_takes_the_step_before_back() -> None:
    for make in skippable(gw.TopK(0.05)):
        model, handle = make()
        for step in range(2):  # in the second one DDP makes its buckets anew, on all ranks together
            cross_entropy(model, step).backward()
        kept = handle.state_dict()
        if dist.get_rank() == 1:
            with handle.accumulate():
                cross_entropy(model, 1).backward()
        refused(ValueError, "rank 1 cannot go on: skip() takes back the last step, but the passes since", handle.skip)
        after = handle.state_dict()
        assert all(torch.equal(kept[key], after[key]) for key in kept)
        # the job goes on
        cross_entropy(model, 1).backward()
        handle.skip()
        assert handle.stats().skipped == 1
        handle.detach()


@scenario(2)
def backward_passes_that_are_paused_leave_no_trace() -> None:
    for make in skippable(gw.TopK(0.05)):
        check_paused_passes_leave_no_trace(make, cross_entropy)


@scenario(2)
def where_ddp_reduces_by_itself_there_is_nothing_to_take_back() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1))
    train(ddp, 2)
    before = handle.state_dict()
    handle.replan(gw.NATIVE)
    cross_entropy(ddp, 2).backward()
    handle.skip()
    after = handle.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before if key.endswith("residual"))


# Defects that were


class Counting(gw.ProcessGroup):
    """Counts the collectives of each kind that it starts."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.started: Counter[str] = Counter()

    def start(self, op: gw.Collective) -> gw.Pending:
        self.started[type(op).__name__] += 1
        return super().start(op)


@scenario(2)
def a_transport_that_was_given_outlives_the_job() -> None:
    transport = Counting(dist.new_group([0, 1]))
    for _ in range(2):
        ddp = DistributedDataParallel(network())
        handle = gw.attach(ddp, gw.TopK(0.1), transport=transport)
        transport.started.clear()
        train(ddp, 2)
        assert transport.started["Gather"] >= 2
        handle.detach()
    numbers = torch.ones(3)
    transport.run(gw.Sum(gw.Message.plain(numbers)))
    assert numbers.tolist() == [2, 2, 2]
    transport.close()
    refused(RuntimeError, "was closed", lambda: transport.run(gw.Sum(gw.Message.plain(numbers))))
    refused(RuntimeError, "was closed", lambda: gw.attach(DistributedDataParallel(network()), transport=transport))


@scenario(2)
def a_group_that_was_given_twice_carries_one_job_after_another() -> None:
    group, share = dist.new_group([0, 1]), (0.1, 0.2)[dist.get_rank()]
    other, ddp = DistributedDataParallel(network()), DistributedDataParallel(network())
    first = gw.attach(other, gw.TopK(0.1), transport=gw.ProcessGroup(group))
    # at once, its messages would have the same tags
    busy = "this transport carries another job"
    refused(ValueError, busy, lambda: gw.attach(ddp, gw.TopK(0.1), transport=gw.ProcessGroup(group)))
    first.detach()
    # afterwards, what the ranks have left in the store is not read again
    refused(ValueError, "differ in plan", lambda: gw.attach(ddp, gw.TopK(share), transport=gw.ProcessGroup(group)))
    gw.attach(ddp, gw.TopK(0.1), transport=gw.ProcessGroup(group))
    train(ddp, 2)
    assert same_on_all_ranks(flat(ddp))


@scenario(2)
def a_plan_that_a_user_installs_takes_effect_where_ddp_reduced_by_itself() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1))
    train(ddp, 3)
    compressed = handle.plan
    for plan in (gw.NATIVE, compressed, gw.NATIVE, compressed):
        before = handle.stats()
        handle.replan(plan)
        assert handle.plan == plan
        train(ddp, 3)
        handle.replan(plan)  # counts DDP's last step
        ddp(batch(0)[0])
        after = handle.stats()
        sent, dense = after.wire_bytes - before.wire_bytes, after.dense_bytes - before.dense_bytes
        assert (sent >= dense) == plan.native
        assert after.steps - before.steps == 3
    assert same_on_all_ranks(flat(ddp))


class FailsAside(gw.Controller):
    """Cannot decide on rank 1 what follows a step of DDP's own."""

    def decide(self, seen: gw.Observation):
        if seen.plan.native and seen.rank == 1:
            raise ArithmeticError("no decision")
        return gw.NativeRequest(1)


@scenario(2)
def an_error_between_steps_reaches_all_ranks() -> None:
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, gw.FP32(), controller=FailsAside())
    start = time.monotonic()
    refused((ArithmeticError, RuntimeError), "no decision", lambda: train(ddp, 8))
    assert time.monotonic() - start < 20


@scenario(2)
def parameters_that_are_added_to_the_optimizer_are_stepped() -> None:
    module = network()
    inner = torch.optim.SGD(module[:3].parameters(), lr=0.1)
    optimizer = gw.DistributedOptimizer(inner, module, gw.FP32())
    train(module, 1, optimizer=optimizer)
    before = [p.clone() for p in module[3:].parameters()]
    optimizer.add_param_group({"params": list(module[3:].parameters())})
    train(module, 1, optimizer=optimizer)
    assert not any(torch.equal(old, new) for old, new in zip(before, module[3:].parameters(), strict=True))
    assert len(optimizer.param_groups) == len(inner.param_groups) == 2
    alien = nn.Parameter(torch.ones(3))
    refused(ValueError, "wrap it anew", lambda: optimizer.add_param_group({"params": [alien]}))


@scenario(2)
def parameters_that_take_the_place_of_others_in_the_optimizer_are_averaged() -> None:
    model = network()
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model[0].parameters(), lr=0.1), model, gw.FP32())
    train(model, 2, optimizer=optimizer)
    held = optimizer.param_groups[0]["params"]
    # as many as before, in the same list; without a forward pass of the model itself
    held[:] = model[4].parameters()
    for step in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model[2:](torch.relu(model[0](batch(step)[0]))), batch(step)[1]).backward()
        assert all(same_on_all_ranks(p.grad) for p in held)
        optimizer.step()
    # behind backward: what they have is this rank's own
    plain_step(model, 2)
    held[:] = model[2].parameters()
    refused(RuntimeError, "'2.weight' came to the optimizer after backward()", optimizer.step)
    held[:] = nn.Linear(3, 4).parameters()
    refused(RuntimeError, "a parameter that the model had not when it was wrapped; wrap it anew", optimizer.step)
    optimizer.handle.detach()
    model = network()
    local = gw.LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.FP32(), inner_steps=2)
    local.param_groups[0]["params"][0] = nn.Parameter(torch.ones(3))
    refused(RuntimeError, "a parameter that the model had not when it was wrapped; wrap it anew", local.step)


@scenario(2)
def a_backward_that_failed_on_all_ranks_leaves_no_trace() -> None:
    def run(fails: bool, known: bool = True) -> Tensor:
        module = network()
        inner = torch.optim.SGD(module.parameters(), lr=0.1)
        optimizer = gw.DistributedOptimizer(inner, module if known else None, gw.TopK(0.1))
        train(module, 2, optimizer=optimizer)
        if fails:
            hook = module[2].weight.register_hook(fail)
            with pytest.raises(ZeroDivisionError):
                train(module, 1, first=2, optimizer=optimizer)
            hook.remove()
        train(module, 2, first=3, optimizer=optimizer)
        assert same_on_all_ranks(flat(module))
        return flat(module)

    def fail(grad: Tensor) -> None:
        raise ZeroDivisionError

    whole = run(fails=False)
    assert torch.equal(run(fails=True), whole)
    assert torch.equal(run(fails=True, known=False), whole)


PUBLISHED_USAGE = """import acpsgd
acpsgd.init()
...
optimizer = optim.SGD(model.parameters(), ...)
optimizer = acpsgd.DistributedOptimizer(optimizer, ...)
...
for i, (data, target) in enumerate(train_loader):
    optimizer.zero_grad()
    output = model(data)
    loss = criterion(output, target)
    loss.backward()
    optimizer.step()
...
"""
"""Of ACP-SGD's README."""


@scenario(2)
def the_published_usage_of_acp_sgd_runs_but_for_its_import() -> None:
    def run(*wrapped: str) -> tuple[Tensor, gw.DistributedOptimizer]:
        lines = PUBLISHED_USAGE.replace("import acpsgd", "import gradwire as acpsgd")
        for options in ("lr=0.1", ", ".join(wrapped)):
            lines = lines.replace(" ...)", f" {options})", 1)
        model, loader = network(seed=dist.get_rank()), [batch(step) for step in range(4)]
        names = {
            "optim": torch.optim,
            "model": model,
            "train_loader": loader,
            "criterion": nn.CrossEntropyLoss(),
            "gw": gw,
        }
        exec(lines, names)
        assert same_on_all_ranks(flat(model))
        return flat(model), names["optimizer"]

    _, optimizer = run("compressor=gw.ACPSGD(4)")
    assert optimizer.handle.stats().ratio > 1
    assert optimizer.handle.plan
    assert sorted(name for group in optimizer.handle.plan.groups for name in group.slots) == [
        f"0.{i}" for i in range(6)
    ]
    assert torch.equal(run("compressor=gw.TopK(0.1)")[0], run("model", "compressor=gw.TopK(0.1)")[0])


@scenario(2)
def an_optimizer_s_names_stand_for_those_of_a_model_that_is_not_given() -> None:
    model = network()
    named = torch.optim.SGD(model.named_parameters(), lr=0.1)
    refused(ValueError, "is no Module; pass one", lambda: gw.DistributedOptimizer(named, gw.TopK(0.1)))
    dense = {"0.weight"}
    optimizer = gw.DistributedOptimizer(named, compressor=gw.TopK(0.1), dense=lambda name, _: name in dense)
    assert optimizer.handle.plan
    ways = {name: group.compressor for group in optimizer.handle.plan.groups for name in group.slots}
    assert (ways["0.weight"], ways["2.weight"]) == (gw.FP32(), gw.TopK(0.1))
    refused(ValueError, "wrap it anew", lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]}))
    train(model, 2, optimizer=optimizer)
    assert same_on_all_ranks(flat(model))
    # two models whose parameters have the same names
    both = [("weight", nn.Parameter(torch.ones(9))), ("weight", nn.Parameter(torch.ones(9)))]
    groups = [{"params": [each]} for each in both]
    plan = gw.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), compressor=gw.FP32()).handle.plan
    assert plan
    assert {name for group in plan.groups for name in group.slots} == {"0.0", "1.0"}


@scenario(2)
def initial_values_come_over_the_transport_that_was_given() -> None:
    transport, module = Counting(dist.new_group([0, 1])), network(seed=dist.get_rank())
    gw.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), module, gw.TopK(0.1), transport=transport)
    assert transport.started["Broadcast"] == 1
    assert same_on_all_ranks(flat(module))


@scenario(2, 3)
def what_differs_between_ranks_is_named_with_the_ranks() -> None:
    rank = dist.get_rank()
    controllers = [gw.WarmUp(steps=30 if rank else 20), gw.GraVAC(2, 64, window=10 + rank), None if rank else gw.CAT()]
    for controller in controllers:
        attach = partial(gw.attach, DistributedDataParallel(network()), gw.TopK(0.1), controller=controller)
        refused(ValueError, "differ in controller", attach)
    ddp = DistributedDataParallel(network())
    refused(
        ValueError, "differ in seed: 0 on rank 0, 1 on rank", lambda: gw.attach(ddp, gw.TopK(0.1), seed=min(rank, 1))
    )
    gw.attach(ddp, gw.TopK(0.1))


def left_behind() -> tuple[int, int]:
    """Threads of Gradwire's, and groups that torch.distributed knows."""
    gc.collect()
    threads = [thread for thread in threading.enumerate() if thread.name == "gradwire"]
    return len(threads), len(dist.distributed_c10d._world.pg_map)


@scenario(2)
def what_is_not_used_any_more_is_gone() -> None:
    before = left_behind()
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1))
    train(ddp, 2)
    kept = [weakref.ref(handle._runtime)]
    for number in range(2):
        module = network()
        optimizer = optimizers_of(module)[number]()
        train(module, 2, optimizer=optimizer)
        kept.append(weakref.ref(optimizer.handle._runtime))
    del ddp, handle, module, optimizer
    assert left_behind() == before
    assert [each() for each in kept] == [None, None, None]
    ddp = DistributedDataParallel(network())
    ratio = 0.1 + 0.1 * dist.get_rank()
    refused(ValueError, "differ in plan", lambda: gw.attach(ddp, gw.TopK(ratio)))
    refused(ValueError, "cannot be added", lambda: gw.attach(ddp, gw.TopK(0.1), communicator=gw.AllReduce()))
    assert left_behind() == before
    assert not ddp._comm_hooks
    train(ddp, 2)
    gw.attach(ddp, gw.TopK(0.1)).detach()
    module = network()
    gw.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1), module, gw.TopK(0.1)).handle.detach()
    assert left_behind() == before


@scenario(4)
def hosts_come_and_go() -> None:
    for _ in range(3):
        mesh = gw.ProcessGroup.by_host(2)
        numbers = torch.full((3,), float(dist.get_rank()))
        mesh.sum(numbers)
        assert numbers.tolist() == [6, 6, 6]
        mesh.close()
    for _ in range(2):
        ddp = DistributedDataParallel(network())
        handle = gw.attach(ddp, gw.TopK(0.1), transport=gw.ProcessGroup.by_host(2))
        train(ddp, 2)
        assert same_on_all_ranks(flat(ddp))
        handle.detach()


@scenario(2)
def memories_hold_gradients_without_the_losss_scale() -> None:
    """Scales that are powers of two, and steps that overflow: bit for bit training that skips the same steps."""

    def run(scales: list[float] | None) -> Tensor:
        ddp = DistributedDataParallel(network())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scales else None
        gw.attach(ddp, gw.TopK(0.1), scaler=scaler)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(8):
            bad = step in (2, 5)
            if bad and not scaler:
                continue
            inputs, targets = batch(step)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(inputs), targets)
            if not scaler:
                loss.backward()
                optimizer.step()
                continue
            if bad and dist.get_rank() == 1:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(scales[step])
        assert same_on_all_ranks(flat(ddp))
        return flat(ddp)

    scales = [2.0**power for power in (10, 3, -2, 16, 15, 0, 8, 8)]
    assert torch.equal(run(scales), run(None))


# Last, for it breaks the process groups it meets


@scenario(3, long=True)
def controllers_decide_alike_whatever_each_rank_sees() -> None:
    """75 steps of each, 375 in all; gradients differ a million times in size, and ranks come late at random."""
    chance = random.Random(dist.get_rank())
    controllers = [
        gw.GraVAC(2, 64, window=10), gw.LGreCo(interval=20), gw.Accordion(0.3, 0.05, Halving(), interval=15),
        gw.WarmUp(0.5, steps=40), gw.CAT(2, 64),
    ]  # fmt: skip
    for controller in controllers:
        module = network()
        ddp = DistributedDataParallel(module, bucket_cap_mb=0.01)
        handle = gw.attach(ddp, gw.TopK(0.1), controller=controller)
        digests = []
        for step in range(75):
            inputs, targets = batch(step)
            time.sleep(0.02 * chance.random() ** 8)
            scale = 1000.0 ** chance.uniform(-1, 1)
            (nn.functional.cross_entropy(ddp(inputs), targets) * scale).backward()
            if step % 5 == 0:
                assert handle.plan
                digests.append(crc32(handle.plan.to_json().encode()))
        assert same_on_all_ranks(torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]))
        told = "".join(decision.decision for decision in controller.decisions)
        assert told, controller
        assert same_on_all_ranks(torch.tensor([crc32(told.encode()), *digests])), controller
        handle.detach()


class Halving:
    """A learning rate that halves at every 100th question."""

    asked = 0

    def get_last_lr(self) -> list[float]:
        self.asked += 1
        return [0.5 ** (self.asked // 100)]


class Fails(gw.TopK):
    """Cannot encode on rank 1 from the third step on."""

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        if dist.get_rank() == 1 and parts.context.step == 2:
            raise ArithmeticError("no such number")
        super().encode(vector, payloads, parts)


@scenario(2, 3)
def a_failing_compressor_ends_all_ranks() -> None:
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, Fails(0.1))
    start = time.monotonic()
    refused(RuntimeError, "failed on rank 1: ArithmeticError: no such number", lambda: train(ddp, 5))
    assert time.monotonic() - start < 20  # the process group's own timeout is 30 minutes


# Replicas are compared


def flip_a_bit(parameter: Tensor) -> None:
    parameter.detach().view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 7)


def made_in_every_way() -> list[tuple[nn.Module, object, gw.Handle]]:
    """A model, what to call and step, and the handle: DDP, native or not; the optimizer; local steps in mid-round."""
    ddp, native, model, local = (
        DistributedDataParallel(network()),
        DistributedDataParallel(network()),
        network(),
        network(),
    )
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.EFSignSGD())
    rounds = gw.LocalSteps(torch.optim.SGD(local.parameters(), lr=0.1), local, gw.Quantized(4), inner_steps=3)
    return [
        (ddp, None, gw.attach(ddp, gw.TopK(0.1))), (native, None, gw.attach(native, gw.NATIVE)),
        (model, optimizer, optimizer.handle), (local, rounds, rounds.handle),
    ]  # fmt: skip


@scenario(3)
def a_flipped_bit_is_named_on_all_ranks_and_mended() -> None:
    for module, optimizer, handle in made_in_every_way():
        train(module, 4, optimizer=optimizer)
        assert handle.verify() == []
        held = handle._front_end.held()
        name, after = [*held][2], [*held][4]
        before = torch.cat([p.detach().clone().flatten() for p in held.values()])
        if dist.get_rank() == 1:
            flip_a_bit(held[name])
        if dist.get_rank() == 2:
            flip_a_bit(held[after])
        first = f"replicas differ: parameter {name!r} has other values on rank 1 than on ranks 0, 2"
        refused(RuntimeError, first, handle.verify)
        assert handle.verify(heal=True) == [name, after]
        assert torch.equal(torch.cat([p.detach().flatten() for p in held.values()]), before)
        assert handle.verify() == []
        train(module, 3, first=4, optimizer=optimizer)
        assert handle.verify() == []


@scenario(3)
def a_rank_that_others_wait_for_is_named_on_all() -> None:
    for module, optimizer, handle in made_in_every_way():
        handle.stragglers()  # what comes before is not counted
        for step in range(3):
            time.sleep(0.5 if dist.get_rank() == 1 else 0.0)
            train(module, 1, first=step, optimizer=optimizer)
        native = handle.plan == gw.NATIVE
        found = handle.stragglers(factor=2)
        assert [each.rank for each in found] == ([] if native else [1])
        assert native or f"rank 1 (host {gethostname()}) takes " in str(found[0])
        assert not handle.stragglers(factor=1e6)
        refused(ValueError, "factor=0.5: give 1 or more", partial(handle.stragglers, 0.5))
        handle.detach()
        refused(ValueError, "detach() ended the exchange", handle.stragglers)
    model = network()
    delayed = gw.LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), model, inner_steps=4, delay=1)
    refused(ValueError, "do not wait for each other", delayed.handle.stragglers)


@scenario(2)
def two_ranks_have_no_majority() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1))
    if dist.get_rank():
        flip_a_bit(next(ddp.parameters()))
    mine = flat(ddp)
    refused(RuntimeError, "than on rank 0, no majority", lambda: handle.verify(heal=True))
    assert torch.equal(flat(ddp), mine)
    handle.detach()
    refused(ValueError, "detach() ended", handle.verify)


@scenario(2)
def who_left_is_named_where_ranks_talk_between_steps() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1), elastic=True)
    train(ddp, 2)
    if dist.get_rank():
        handle.leave()
    else:
        refused(RuntimeError, "ended: rank 1 has left the job", handle.verify)


@scenario(4)
def replicas_on_hosts_are_compared_and_mended() -> None:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.1), transport=gw.ProcessGroup.by_host(2))
    train(ddp, 2)
    before = flat(ddp)
    for odd in range(4):
        if dist.get_rank() == odd:
            flip_a_bit(ddp.module[2].weight)
        refused(RuntimeError, f"'2.weight' has other values on rank {odd} than on ranks", handle.verify)
        assert handle.verify(heal=True) == ["2.weight"]
        assert torch.equal(flat(ddp), before)


# Parameters that are frozen and thawed between steps, and several optimizers of one model


def freeze(model: nn.Module, frozen: set[int]) -> None:
    """The layers of a network with these indices."""
    for index, layer in enumerate(model):
        layer.requires_grad_(index not in frozen)


def plain_step(model: nn.Module, step: int) -> Tensor:
    inputs, targets = batch(step)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss


@scenario(2, 3)
def layers_that_are_frozen_and_thawed_train_as_with_plain_torch() -> None:
    phases = [{0, 2}, {0}, {0}, set(), {4}, {4}, {2}, set()]  # head first, then deeper; then parts in turn
    for compressor in (gw.FP32(), gw.TopK(0.1), gw.PowerSGD(2)):
        plain, model = network(), network()
        freeze(model, phases[0])
        held = [p for index in (2, 4) for p in model[index].parameters()]
        optimizer = gw.DistributedOptimizer(torch.optim.SGD(held, lr=0.1), model, compressor)
        native = torch.optim.SGD(plain.parameters(), lr=0.1)
        sent, kept = [0], {}
        for step, frozen in enumerate(phases):
            freeze(model, frozen)
            if step == 3:
                optimizer.add_param_group({"params": model[0].parameters()})
            plain_step(model, step)
            if compressor == gw.FP32():
                freeze(plain, frozen)
                plain_step(DistributedDataParallel(plain), step)  # DDP itself reads requires_grad once
                for one, other in zip(model.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(one.grad, other.grad)
                native.step()
                native.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
            assert same_on_all_ranks(flat(model)), (compressor, step)
            assert optimizer.handle.verify() == []
            sent.append(optimizer.handle.stats().wire_bytes)
            state = optimizer.handle.state_dict()
            if 4 in frozen and compressor == gw.TopK(0.1):
                kept.setdefault("head", state["4.weight//residual"])
                assert torch.equal(state["4.weight//residual"], kept["head"])
        steps = [after - before for before, after in pairwise(sent)]
        assert steps[0] < steps[1] < steps[3], "what is frozen is not sent"
        with torch.no_grad():
            model[0].bias.requires_grad_(False).add_(dist.get_rank())
        refused(RuntimeError, "parameter '0.bias' has other values", optimizer.handle.verify)
        optimizer.handle.detach()


@scenario(2)
def layers_that_are_thawed_while_plans_are_tried_are_in_the_plan_that_is_chosen() -> None:
    model, controller = network(), gw.Auto([gw.TopK(0.1)])
    freeze(model, {0})
    options = {"compressor": gw.FP32(), "controller": controller}
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, **options)
    for step in range(2 * tuner.CHOOSING_STEPS):
        if "trials" in optimizer.handle.status():
            freeze(model, set())
        plain_step(model, step)
        optimizer.step()
        optimizer.zero_grad()
        if controller.chosen:
            break
    assert {
        name for trials in controller.tried[1:] for plan in trials.plans for g in plan.groups for name in g.slots
    } == {name for name, _ in model.named_parameters()}
    assert same_on_all_ranks(flat(model))
    optimizer.handle.detach()


@scenario(2, 3)
def layers_that_are_thawed_on_some_ranks_alone_end_the_job_on_all() -> None:
    model = network()
    freeze(model, {0, 2})
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.TopK(0.1))
    plain_step(model, 0)
    freeze(model, {2} if dist.get_rank() == 0 else {0})
    refused(ValueError, "the ranks differ in requires_grad of '2.bias': ", lambda: plain_step(model, 1))
    refused(ValueError, "the ranks differ in requires_grad of '2.bias': ", lambda: plain_step(model, 2))
    optimizer.handle.detach()


@scenario(2, 3)
def layers_that_one_rank_alone_thaws_end_the_job_on_all() -> None:
    model = network()
    freeze(model, {0, 2})
    group = dist.new_group(timeout=timedelta(seconds=4))
    wrapped = gw.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, gw.TopK(0.1), process_group=group)
    plain_step(model, 0)
    freeze(model, {2} if dist.get_rank() == 0 else {0, 2})
    refused(RuntimeError, "requires_grad of '0.bias' has changed on some ranks alone", lambda: plain_step(model, 1))
    wrapped.handle.detach()


@scenario(2)
def lora_in_phases_trains_what_is_thawed_and_keeps_the_rest() -> None:
    model = network().requires_grad_(False)
    for layer in (0, 2):
        adapter = nn.Sequential(nn.Linear(60, 4, bias=False), nn.Linear(4, 60, bias=False))
        model[layer + 1] = nn.Sequential(model[layer + 1], adapter)
    adapters = [model[1][1], model[3][1]]
    adapters[1].requires_grad_(False)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.TopK(0.2))
    before = optimizer.handle.stats()
    for step in range(6):
        for index, adapter in enumerate(adapters):  # one at a time
            adapter.requires_grad_(index == step // 2 % 2)
        plain_step(model, step)
        optimizer.step()
        optimizer.zero_grad()
        kept = {key.partition("//")[0] for key in optimizer.handle.state_dict() if key.endswith("//residual")}
        assert {name[:3] for name in kept} <= {"1.1", "3.1"}, kept
        assert kept
    assert same_on_all_ranks(flat(model))
    most = 8 * 6 * sum(p.numel() for p in adapters[0].parameters()) + 8 * 1000
    assert optimizer.handle.stats().wire_bytes - before.wire_bytes < most
    optimizer.handle.detach()


class Adversaries(nn.Module):
    """A generator and the discriminator that it is to deceive."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.makes = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 20))
        self.judges = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, noise: Tensor) -> Tensor:
        return self.judges(self.makes(noise))


def play(model: Adversaries, makes, judges, steps: int = 4) -> None:
    """Both in turn, each frozen while the other one trains."""
    for step in range(steps):
        noise = torch.randn(8, 8, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
        for optimizer, frozen, thawed, sign in (
            (judges, model.makes, model.judges, 1),
            (makes, model.judges, model.makes, -1),
        ):
            frozen.requires_grad_(False)
            thawed.requires_grad_(True)
            optimizer.zero_grad()
            (sign * nn.functional.softplus(model(noise))).mean().backward()
            optimizer.step()
    model.requires_grad_(True)


@scenario(2, 3)
def two_optimizers_of_one_model_train_as_with_plain_torch() -> None:
    native = Adversaries()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (native.makes, native.judges)]
    for optimizer in optimizers:

        def average(own: torch.optim.Optimizer, *_: object) -> None:
            for parameter in own.param_groups[0]["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

        optimizer.register_step_pre_hook(average)
    play(native, *optimizers)
    for compressor in (gw.FP32(), gw.TopK(0.1), gw.PowerSGD(2)):
        model = Adversaries()
        ours = [
            gw.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=0.1), model, compressor)
            for part in (model.makes, model.judges)
        ]
        play(model, *ours)
        if compressor == gw.FP32():
            torch.testing.assert_close(flat(model), flat(native))
        assert same_on_all_ranks(flat(model)), compressor
        assert [each.handle.stats().steps for each in ours] == [4, 4]
        for each in ours:
            each.handle.detach()


@scenario(2)
def muon_for_matrices_and_adamw_for_the_rest_train_as_with_plain_torch() -> None:
    def split(model: nn.Module) -> list[torch.optim.Optimizer]:
        matrices = [p for p in model.parameters() if p.dim() == 2]
        return [
            torch.optim.Muon(matrices, lr=0.02),
            torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2], lr=0.01),
        ]

    def run(model: nn.Module, optimizers) -> None:
        for step in range(4):
            plain_step(model, step)
            for each in optimizers:
                each.step()
                each.zero_grad()

    native = DistributedDataParallel(network())
    run(native, split(native))
    attached = DistributedDataParallel(network())
    handle = gw.attach(attached, gw.FP32())
    run(attached, split(attached))
    torch.testing.assert_close(flat(attached), flat(native))
    handle.detach()
    for compressor in (gw.FP32(), gw.TopK(0.1), gw.PowerSGD(2)):
        model = network()
        ours = [gw.DistributedOptimizer(each, model, compressor) for each in split(model)]
        run(model, ours)
        if compressor == gw.FP32():
            torch.testing.assert_close(flat(model), flat(native))
        assert same_on_all_ranks(flat(model)), compressor
        for each in ours:
            each.handle.detach()


@scenario(2)
def what_is_averaged_already_is_refused() -> None:
    model = network()
    wrap = partial(gw.DistributedOptimizer, torch.optim.SGD(model.parameters(), lr=0.1), model, gw.FP32())
    again = "parameter '0.weight' is averaged by a DistributedOptimizer already; call detach() of its handle first"
    handle = wrap().handle
    refused(ValueError, again, wrap)
    refused(ValueError, again, lambda: gw.attach(DistributedDataParallel(model), gw.FP32()))
    refused(ValueError, again, lambda: gw.LocalSteps(torch.optim.SGD(model.parameters()), model, gw.FP32()))
    handle.detach()
    ddp = DistributedDataParallel(model)
    handle = gw.attach(ddp, gw.FP32())
    refused(ValueError, "parameter '0.weight' is averaged by attach(ddp) already", wrap)
    handle.detach()
    local = gw.LocalSteps(torch.optim.SGD(model.parameters()), model, gw.FP32())
    refused(ValueError, "parameter '0.weight' is averaged by LocalSteps already", wrap)
    local.handle.detach()
    strangers = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
    refused(ValueError, "not the model's", lambda: gw.DistributedOptimizer(strangers, model, gw.FP32()))
