"""Wherever in a step a rank is lost, and whenever a survivor hears of it: in the checkpoint that it writes in its
`except` branch parameters, optimizer and memories are those of the last whole step.

Ranks are threads. As over gloo, a wait raises when half of a result is there; as over NCCL, it raises nothing, and the
host goes on: the worker's thread plays the stream, and the job hears of the loss at some later moment."""

import io
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.checkpoint import unpack
from gradwire.frontends.owners import claim
from gradwire.runtime.failures.job_errors import PeerFailed
from gradwire.runtime.worker.executor import Executor
from gradwire.transports import Threads
from tests.support.harness import WAIT_S, raising, together
from tests.support.ranks import one_rank
from tests.support.states import kept

WORLD, WHOLE, STEPS = 2, 2, 5
IN_WAIT, BEFORE, AFTER = "in the wait", "before optimizer.step()", "after optimizer.step()"
MODEL = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
TWO_GROUPS = gw.groups.of(count=2)

PLANS = {
    "all-reduce": {"compressor": gw.FP32()},
    "all-gather": {"compressor": gw.TopK(0.3), "memory": gw.Residual()},
    "two rounds": {"compressor": gw.PowerSGD(1), "memory": gw.Residual()},
    "all-to-all": {"compressor": gw.Quantized(4), "memory": gw.Residual(), "communicator": gw.ScatterReduce()},
    "rank to rank": {"compressor": gw.TopK(0.3), "memory": gw.Residual(), "communicator": gw.GlobalTopK()},
}  # fmt: skip


class Half:
    """A collective of which half arrives when a rank is lost; then the wait raises, or on NCCL returns."""

    def __init__(self, op: Any, transport: "Losing", pending: Any) -> None:
        self._received, self._transport, self._pending = op.receive.whole, transport, pending
        self._before = self._received.clone()

    def wait(self) -> None:
        if self._pending:
            self._pending.wait()
        half = len(self._received) // 2
        self._received[half:] = self._before[half:]
        self._transport.lose()


class Heard:
    """A collective that is whole, before or after which the rank hears that another one was lost."""

    def __init__(self, pending: Any, transport: "Losing") -> None:
        self._pending, self._transport = pending, transport

    def wait(self) -> None:
        self._pending.wait()
        self._transport.hear()


class Losing(Threads):
    """Threads of which some lose a rank at collective number `at`."""

    runtime: Any = None
    at, moment, raises, hears = 1 << 30, "", True, ""
    heard = False

    def start(self, op: Any) -> Any:
        number = len(self.started)
        if number > self.at and self.moment == "half":
            self.started.append(op)
            return Half(op, self, None)
        if number == self.at and self.moment == "before":
            self.hear()
        pending = super().start(op)
        if number != self.at:
            return pending
        return {"half": partial(Half, op, self, pending), "after": partial(Heard, pending, self)}.get(
            self.moment, lambda: pending
        )()

    def lose(self) -> None:
        if self.raises:
            raise RuntimeError("the connection broke")
        self.runtime._executor.abort()
        if self.hears == IN_WAIT:
            self.hear()

    def hear(self) -> None:
        """As the monitor's thread does."""
        if not self.heard:
            self.heard = True
            error = PeerFailed("reducing ended", "a rank was lost")
            monitor = threading.Thread(target=self.runtime.fail, args=(error,), daemon=True)
            monitor.start()
            monitor.join(WAIT_S)


@dataclass
class Loss:
    """When and how the ranks `deaf` lose another one."""

    at: int = 1 << 30
    moment: str = ""
    raises: bool = True
    deaf: tuple[int, ...] = ()
    hears: str = ""
    """When a rank whose waits raise nothing hears of it."""


@dataclass(repr=False)
class Rank:
    """A training loop as users write it, which keeps a copy of all after each step."""

    number: int
    transport: Losing
    make: Callable[..., Any]
    checks: bool = False
    fused: bool = False
    loss: Loss = field(default_factory=Loss)
    history: dict[int, Any] = field(default_factory=dict)
    error: Exception | None = None

    def train(self) -> "Rank":
        self.model = deepcopy(MODEL)
        self.forward, self.optimizer, self.handle, self.inner = self.make(self.model, self.transport, self.fused)
        self.transport.runtime, self.transport.hears = self.handle._runtime, self.loss.hears
        self._plant()
        self._keep()
        try:
            for step in range(STEPS):
                self._step(step)
                self._keep()
        except RuntimeError as error:
            self.error = error
        self.saved = self.checkpoint()
        return self

    def _step(self, step: int) -> None:
        if step == WHOLE:
            self.transport.runtime._executor.flush()
            self.transport.at = len(self.transport.started) + self.loss.at
        self.optimizer.zero_grad()
        draw = torch.Generator().manual_seed(step * WORLD + self.number)
        (self.forward(torch.randn(3, 6, generator=draw)) ** 2).sum().backward()
        self._hear(step, BEFORE)
        if not self.checks or all(p.grad.isfinite().all() for p in self.model.parameters()):
            self.optimizer.step()
        self._hear(step, AFTER)

    def _hear(self, step: int, moment: str) -> None:
        if step == WHOLE and (self._suffers(moment) or self.loss.hears == moment):
            self.transport.hear()

    def _suffers(self, moment: str) -> bool:
        return self.loss.moment == moment and self.number in self.loss.deaf

    def _plant(self) -> None:
        """Has the loss be heard where it is to be."""
        if self.number in self.loss.deaf:
            self.transport.moment, self.transport.raises = self.loss.moment, self.loss.raises
        steps = self.transport.runtime._steps
        calls = ("before counting", steps._verdict, "poison"), ("after counting", steps, "_step_ended")
        for moment, part, name in calls:
            if self._suffers(moment):
                setattr(part, name, partial(self._first, getattr(part, name)))

    def _first(self, call: Callable[..., None], *arguments: Any) -> None:
        if self.transport.runtime._steps.number + (self.loss.moment == "before counting") == WHOLE + 1:
            self.transport.hear()
        call(*arguments)

    def checkpoint(self) -> dict[str, Any]:
        """As it comes back from a file."""
        file = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(), "optimizer": self.inner.state_dict(),
                "gradwire": self.handle.state_dict(),
            },
            file,
        )  # fmt: skip
        file.seek(0)
        return torch.load(file, weights_only=True)

    def _keep(self) -> None:
        if not self.loss.deaf:
            saved = self.checkpoint()
            self.history[taken(saved)] = saved


def taken(saved: dict[str, Any]) -> int:
    """The steps that a checkpoint has."""
    state = unpack(saved["gradwire"])
    return state.step - state.about.skipped


def of_ddp(model: nn.Module, transport: Losing, fused: bool, **options: Any) -> Any:
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1, fused=fused)
    return ddp, optimizer, gw.attach(ddp, transport=transport, groups=TWO_GROUPS, **options), optimizer


def of_optimizer(model: nn.Module, transport: Losing, fused: bool, **options: Any) -> Any:
    inner = torch.optim.Adam(model.parameters(), 0.1, fused=fused)
    optimizer = gw.DistributedOptimizer(inner, model, transport=transport, groups=TWO_GROUPS, **options)
    return model, optimizer, optimizer.handle, inner


FRONT_ENDS = {"DDP": of_ddp, "DistributedOptimizer": of_optimizer}


CASES = [
    pytest.param(front_end, plan, marks=[] if plan == "all-gather" else [pytest.mark.long])
    for front_end in FRONT_ENDS
    for plan in PLANS
]


def run(make: Callable[..., Any], loss: Loss, **options: Any) -> list[Rank]:
    transports = Losing.group(WORLD)
    return raising(together(WORLD, lambda n: Rank(n, transports[n], make, loss=loss, **options).train()))


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory):
    """DDP's own group has one rank; Gradwire's transport has them all."""
    with one_rank(tmp_path_factory.mktemp("store")):
        yield


def collectives(ranks: list[Rank]) -> int:
    """How many a step takes."""
    return len(ranks[0].transport.started) // STEPS


DEAF = [(0,), (0, 1)]


def inside(count: int, moment: str, **options: Any) -> list[Loss]:
    """Losses at each collective of a step, on one rank or on all."""
    return [Loss(at, moment, deaf=DEAF[at % len(DEAF)], **options) for at in range(count)]


def around() -> list[Loss]:
    """Losses that are heard of when all collectives are over."""
    return [Loss(moment=moment, deaf=deaf) for moment in ("before counting", "after counting", BEFORE) for deaf in DEAF]


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def check(rank: Rank, whole: Rank, loss: Loss) -> None:
    """The saved checkpoint is that of an undisturbed training after so many steps."""
    assert rank.error, loss
    expected = whole.history[taken(rank.saved)]
    try:
        for part in ("model", "optimizer"):
            same(rank.saved[part], expected[part])
        same(*(kept(saved["gradwire"]) for saved in (rank.saved, expected)))
    except AssertionError as error:
        raise AssertionError(f"rank {rank.number} after {taken(rank.saved)} steps: {loss}: {error}") from None


def check_all(make: Callable[..., Any], losses: list[Loss], whole: list[Rank], **options: Any) -> None:
    for loss in losses:
        for rank, undisturbed in zip(run(make, loss, **options), whole, strict=True):
            check(rank, undisturbed, loss)


@pytest.mark.parametrize(("front_end", "plan"), CASES)
def test_over_gloo(front_end: str, plan: str):
    make = partial(FRONT_ENDS[front_end], **PLANS[plan])
    whole = run(make, Loss())
    losses = [loss for moment in ("before", "half", "after") for loss in inside(collectives(whole), moment)]
    check_all(make, losses + around(), whole)


@pytest.mark.parametrize(("front_end", "plan"), CASES)
def test_over_nccl(front_end: str, plan: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Executor, "is_immediate", False)
    make = partial(FRONT_ENDS[front_end], **PLANS[plan])
    whole = run(make, Loss())
    losses = [
        loss for hears in (IN_WAIT, BEFORE, AFTER)
        for loss in inside(collectives(whole), "half", raises=False, hears=hears)
    ]  # fmt: skip
    check_all(make, losses + around(), whole, checks=True)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_an_optimizer_that_nothing_checks_over_nccl(front_end: str, monkeypatch: pytest.MonkeyPatch):
    """It is called with an error that is known, and a fused one's kernels look themselves."""
    monkeypatch.setattr(Executor, "is_immediate", False)
    make = partial(FRONT_ENDS[front_end], **PLANS["all-gather"])
    for fused, moments in {False: (IN_WAIT, BEFORE), True: (IN_WAIT, BEFORE, AFTER)}.items():
        whole = run(make, Loss(), fused=fused)
        losses = [loss for hears in moments for loss in inside(collectives(whole), "half", raises=False, hears=hears)]
        check_all(make, losses, whole, fused=fused)


class Lost:
    """The runtime of a job on a GPU."""

    closed, error, is_immediate = False, None, False

    def __init__(self, lost: float) -> None:
        self.owned: dict[torch.Tensor, str] = {}
        self.found_abort = lambda: torch.tensor(lost)

    def check_whole(self) -> None:
        pass


@pytest.mark.parametrize("lost", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_one_optimizer_of_two_jobs_parameters_skips_what_either_has_lost(lost: tuple[float, float]):
    jobs: Any = [Lost(each) for each in lost]
    model = deepcopy(MODEL)
    for layer, each in zip(model, jobs, strict=True):
        claim(layer.parameters(), each, "attach(ddp)")
    optimizer, before = torch.optim.SGD(model.parameters(), 0.1, fused=True), deepcopy(model.state_dict())
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    kept = [torch.equal(before[name], now) for name, now in model.state_dict().items()]
    assert kept == [any(lost)] * len(kept)


def test_claims_leave_other_jobs_parameters_alone_and_change_nothing_that_a_thread_goes_through():
    jobs: Any = [Lost(0.0) for _ in range(3)]
    first, second = (list(layer.parameters()) for layer in deepcopy(MODEL))
    for job, parameters in zip(jobs, (first, second), strict=False):
        claim(parameters, job, "attach(ddp)")
    before = [job.owned for job in jobs]
    claim(second, jobs[0], "attach(ddp)")
    claim(first, jobs[2], "attach(ddp)")
    assert [[*each] for each in before] == [first, second, []]
    assert [[*job.owned] for job in jobs] == [second, [], first]
    mine = jobs[0].owned
    claim([], jobs[2], "attach(ddp)")
    assert jobs[0].owned is mine


# Local steps: every inner step ends a round


def of_local(model: nn.Module, transport: Losing, fused: bool, **options: Any) -> Any:
    inner = torch.optim.Adam(model.parameters(), 0.1, fused=fused)
    plan = {"groups": TWO_GROUPS, **PLANS["all-gather"]}
    optimizer = gw.LocalSteps(inner, model, inner_steps=1, transport=transport, **plan, **options)
    return model, optimizer, optimizer.handle, optimizer


def check_rounds(rank: Rank, whole: Rank, loss: Loss, delay: int, eager: bool) -> None:
    """Anchors and outer optimizer have taken the rounds that memories have, but for means that are under way."""
    assert rank.error, loss
    rounds, count = rank.saved["optimizer"]["local_steps"], taken(rank.saved)
    same(kept(rounds["memory"]), kept(whole.history[count]["optimizer"]["local_steps"]["memory"]))
    assert all(parameter.isfinite().all() for parameter in rank.model.parameters()), loss
    if eager:  # a step is taken with this replica's part of a round before that is there
        lost = any(mean.isnan().any() for mean in rounds["eager"][0]["means"].values())
        expected = whole.history[count + lost]["optimizer"]["local_steps"]
        assert lost or same(rounds["eager"], expected["eager"]) is None
    else:
        under_way = rounds["under way"]
        expected = whole.history[count - len(under_way) + delay]["optimizer"]["local_steps"]
        for one, other in zip(under_way, whole.history[count]["optimizer"]["local_steps"]["under way"], strict=False):
            same(one["means"], other["means"])
    for part in ("anchors", "outer"):
        same(rounds[part], expected[part])


@pytest.mark.parametrize("over", ["gloo", "nccl"])
@pytest.mark.parametrize(("delay", "eager"), [(0, False), (1, False), (0, True)])
def test_local_steps(delay: int, eager: bool, over: str, monkeypatch: pytest.MonkeyPatch):
    nccl = over == "nccl"
    monkeypatch.setattr(Executor, "is_immediate", not nccl)
    make = partial(of_local, delay=delay, eager=eager)
    whole = run(make, Loss())
    losses = [
        loss for hears in ([IN_WAIT, AFTER][: 2 - eager] if nccl else [""])
        for loss in inside(collectives(whole), "half", raises=not nccl, hears=hears)
    ]  # fmt: skip
    for loss in losses + around():
        for rank, undisturbed in zip(run(make, loss), whole, strict=True):
            try:
                check_rounds(rank, undisturbed, loss, delay, eager)
            except AssertionError as error:
                raise AssertionError(f"rank {rank.number} after {taken(rank.saved)} rounds: {loss}: {error}") from None
