"""What front ends check and give back before a job runs."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import gradwire as gw
from gradwire.frontends.options.choices import Choices, StepChoices
from gradwire.frontends.options.parameters import parameters_of
from gradwire.ops import native
from gradwire.ops.backend import backend_on
from gradwire.ops.reference import orthogonal
from gradwire.runtime import agreement, meeting
from gradwire.runtime.agreement import PRODUCTS
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.runtime import Runtime
from tests.support.harness import CPU, SMALL, draw, hosts, job, plan_of, raising, slots_of, together
from tests.support.kernel_cases import needs_library
from tests.support.ranks import run_python

SLOTS = slots_of(SMALL)


class Words(nn.Module):
    """A sparse embedding below a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 4, sparse=True), nn.Linear(4, 40)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words))


@pytest.mark.parametrize("compressor", [gw.FP32(), gw.TopK(0.1)], ids=str)
@pytest.mark.parametrize("by_host", [False, True], ids=["replicas", "hosts"])
def test_gradients_that_the_user_clears_are_kept_by_nobody(by_host: bool, compressor: gw.Compressor):
    """At the peak, in the next backward pass, they would take as much as those that it makes."""
    transports = hosts(2, 1) if by_host else gw.Threads.group(2)

    def train(rank: int) -> list[bool]:
        model: nn.Module = nn.Linear(4, 40) if by_host else Words()
        optimizer = gw.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), model, compressor, transport=transports[rank]
        )
        gone: list[bool] = []
        for _ in range(3):
            model(torch.ones(1, 4) if by_host else torch.tensor([rank, 2])).sum().backward()
            kept = [StorageWeakRef(memory_of(p.grad)) for p in model.parameters() if p.grad is not None]
            optimizer.zero_grad()
            gone += [each.expired() for each in kept]
        return gone

    for gone in raising(together(2, train)):
        assert len(gone) >= 6
        assert all(gone)


def memory_of(gradient: Tensor) -> torch.UntypedStorage:
    return (gradient._values() if gradient.is_sparse else gradient).untyped_storage()


class Refuses(gw.SizeRecorder):
    closed = False

    def check(self, device: torch.device) -> None:
        raise ValueError("not on this device")

    def close(self) -> None:
        self.closed = True


def test_a_group_of_its_own_that_cannot_be_used_is_closed_and_the_users_is_not():
    own, given = Refuses(2), Refuses(2)
    with pytest.raises(ValueError, match="not on this device"):
        Choices().mesh(lambda: own, CPU)
    with pytest.raises(ValueError, match="not on this device"):
        Choices(transport=given).mesh(lambda: own, CPU)
    assert own.closed
    assert not given.closed


@pytest.mark.parametrize("error", [ValueError, KeyError])
def test_what_a_plan_raises_leaves_nothing_open(error: type[Exception]):
    transport = Refuses(1)

    def plan() -> gw.Plan:
        raise error("no plan")

    with pytest.raises(error, match="no plan"):
        Runtime(plan, SLOTS, gw.Mesh.of(transport), CPU, JobOptions())
    assert transport.closed


def test_a_controller_whose_numbers_do_not_fit_its_message_is_refused():
    class Wide(gw.WarmUp):
        numbers = 1000

    with pytest.raises(ValueError, match="Wide sends numbers=1000 per step, and 0 to 16 fit its message"):
        StepChoices.of(gw.TopK(0.1), controller=Wide()).check()


def test_a_model_on_two_devices_or_without_parameters_is_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta"))
    with pytest.raises(ValueError, match=r"'0\.bias' is on cpu and '1\.bias' on meta"):
        parameters_of(model)
    for empty in (nn.Identity(), nn.Linear(3, 3).requires_grad_(False)):
        with pytest.raises(ValueError, match="nothing to reduce"):
            parameters_of(empty)


def test_arithmetic_is_the_same_under_autocast():
    plain = agreement._arithmetic(CPU, PRODUCTS)
    with torch.autocast("cpu", torch.bfloat16):
        assert agreement._arithmetic(CPU, PRODUCTS) == plain


@pytest.mark.parametrize(
    ("rows", "length"), [(1, 1), (17, 1), (8, 4097), (33, 1)], ids=["all", "more rows", "long rows", "most rows"]
)
def test_arithmetic_has_bases_by_every_method(rows: int, length: int, monkeypatch: pytest.MonkeyPatch):
    plain, ops = agreement._arithmetic(CPU, PRODUCTS), backend_on(CPU)

    def otherwise(factors: Sequence[Tensor]) -> None:
        ops.orthogonalize(factors)
        for factor in factors:
            if factor.shape[1] >= rows and factor.shape[2] >= length:
                factor.mul_(1 + 2.0**-20)

    monkeypatch.setattr(agreement, "backend_for", lambda x: replace(ops, orthogonalize=otherwise))
    assert agreement._arithmetic(CPU, PRODUCTS) != plain


@pytest.mark.parametrize("rows", [1, 33])
def test_arithmetic_has_products_by_every_method(rows: int, monkeypatch: pytest.MonkeyPatch):
    plain, ops = agreement._arithmetic(CPU, PRODUCTS), backend_on(CPU)

    def otherwise(out: Sequence[Sequence[Tensor]], p: Sequence[Tensor], q: Sequence[Tensor], *, subtract: bool) -> None:
        ops.multiply(out, p, q, subtract=subtract)
        for (matrix,), factor in zip(out, p, strict=True):
            if factor.shape[1] >= rows:
                matrix.mul_(1 + 2.0**-20)

    monkeypatch.setattr(agreement, "backend_for", lambda x: replace(ops, multiply=otherwise))
    assert agreement._arithmetic(CPU, PRODUCTS) != plain


def test_arithmetic_has_rows_that_only_noise_makes_independent(monkeypatch: pytest.MonkeyPatch):
    drawn, independent = list[int](), orthogonal._independent
    monkeypatch.setattr(orthogonal, "_independent", lambda a: drawn.append(a.shape[1]) or independent(a))
    agreement._arithmetic(CPU, PRODUCTS)
    assert drawn == [40]


def begin_and_end(plan: gw.Plan, transports: list, rank: int, make: Callable[[], Any] = lambda: None) -> None:
    """A rank's job without a step."""
    options = JobOptions(controller=make())
    Runtime(lambda: plan, SLOTS, gw.Mesh.of(transports[rank]), CPU, options).close()


def test_ranks_whose_arithmetic_differs_are_refused_where_all_must_compute_alike(monkeypatch: pytest.MonkeyPatch):
    numbers = count()
    monkeypatch.setattr(agreement, "_arithmetic", lambda *_: str(next(numbers)))
    for compressor, differ in ((gw.TopK(0.1), False), (gw.RandomK(0.1), True), (gw.PowerSGD(2), True)):
        errors = together(2, partial(begin_and_end, gw.plans.uniform(SLOTS, compressor), gw.Threads.group(2)))
        assert ["differ in arithmetic" in str(error) for error in errors] == [differ, differ]


def test_ranks_with_different_threads_are_refused_where_all_must_compute_alike(monkeypatch: pytest.MonkeyPatch):
    """MKL's bases of long matrices differ by the number of threads, the small ones of the checksum do not."""
    threads = count(1)
    monkeypatch.setattr(agreement, "computing_threads", lambda device: next(threads))
    low = gw.PowerSGD(2)
    for compressor, controller, differ in (
        (gw.TopK(0.1), lambda: None, False),
        (low, lambda: None, True),
        # what comes later alone: after a controller's first plan, of its choices, of candidates
        (low, lambda: gw.WarmUp(bits=8), True),
        (gw.TopK(0.1), lambda: gw.LGreCo(choices=(gw.TopK(0.2), low)), True),
        (gw.TopK(0.1), gw.LGreCo, False),
        (gw.FP32(), lambda: gw.Auto([gw.BF16(), low]), True),
        (gw.FP32(), gw.Auto, False),
        (gw.FP32(), lambda: Later((low,)), True),
    ):
        plan, transports = gw.plans.uniform(SLOTS, compressor), gw.Threads.group(2)
        errors = together(2, partial(begin_and_end, plan, transports, make=controller))
        differs = ["threads that compute, which OMP_NUM_THREADS sets" in str(error) for error in errors]
        assert differs == [differ] * 2, (compressor, controller())


def test_ranks_whose_plans_differ_behind_a_controllers_first_one_are_refused():
    transports = gw.Threads.group(2)

    def begin(rank: int) -> None:
        plan = gw.plans.uniform(SLOTS, gw.TopK((0.1, 0.2)[rank]))
        begin_and_end(plan, transports, rank, lambda: gw.WarmUp(bits=8))

    assert ["the ranks differ in plan" in str(error) for error in together(2, begin)] == [True, True]


class Later(gw.Controller):
    """Low rank after the first step, of which it tells by what it `may` send."""

    def __init__(self, may: Sequence[gw.Compressor] = ()) -> None:
        self.may = may

    def may_send(self) -> Sequence[gw.Compressor]:
        return self.may

    def decide(self, seen: gw.Observation) -> gw.Plan:
        return gw.plans.uniform(SLOTS, gw.PowerSGD(2))


def test_a_controllers_plan_that_needs_arithmetic_that_ranks_have_not_compared_is_refused():
    dense = gw.plans.uniform(SLOTS, gw.FP32())
    with job(dense, SLOTS, 2, controllers=[Later(), Later()]) as running:
        with pytest.raises(Exception, match=r"PowerSGD\(rank=2.*have its may_send\(\) return that") as error:
            _ = [running.step(draw(SLOTS, 2, number)) for number in range(4)]
        assert "\n" not in str(error.value)
    with job(dense, SLOTS, 2, controllers=[Later([gw.PowerSGD(4)]) for _ in range(2)]) as running:
        _ = [running.step(draw(SLOTS, 2, number)) for number in range(4)]
        assert running.runtimes[0].plan == gw.plans.uniform(SLOTS, gw.PowerSGD(2))


def test_a_state_whose_plan_needs_arithmetic_that_ranks_have_not_compared_has_them_compare(
    monkeypatch: pytest.MonkeyPatch,
):
    """As of Auto, which had other candidates, and goes on with its plan until it has found a new one."""
    low, dense = (gw.plans.uniform(SLOTS, each) for each in (gw.PowerSGD(2), gw.FP32()))
    with job(dense, SLOTS, 2, controllers=[Later([gw.PowerSGD(2)]) for _ in range(2)]) as running:
        _ = [running.step(draw(SLOTS, 2, number)) for number in range(4)]
        assert running.runtimes[0].plan == low
        states = running.states()
    threads = count(1)
    monkeypatch.setattr(agreement, "computing_threads", lambda device: next(threads))
    with job(dense, SLOTS, 2, controllers=[Later(), Later()]) as other:
        with pytest.raises(ValueError, match="threads that compute"):
            other.load(states)
        assert other.runtimes[0].plan == dense
        monkeypatch.setattr(agreement, "computing_threads", lambda device: 1)
        other.load(states)
        assert [runtime.plan for runtime in other.runtimes] == [low] * 2


def test_a_rank_that_compiles_for_longer_than_ranks_wait_for_each_other_is_not_absent(monkeypatch: pytest.MonkeyPatch):
    """The first to ask a GPU for its arithmetic compiles all kernels; a host may have them already."""
    monkeypatch.setattr(meeting, "PATIENCE_S", 1.5)
    monkeypatch.setattr(agreement, "compiled_on", lambda device: True)
    begun = count()
    monkeypatch.setattr(agreement, "_arithmetic", lambda *_: sleep(2 * next(begun)) or "the same")
    plan, transports = gw.plans.uniform(SLOTS, gw.PowerSGD(2)), gw.Threads.group(2)

    assert together(2, partial(begin_and_end, plan, transports)) == [None, None]


@needs_library
def test_a_rank_without_the_library_is_refused_where_all_must_compute_alike(monkeypatch: pytest.MonkeyPatch):
    """Low rank's products are added up in another order there; draws are the same."""
    mine = threading.local()
    monkeypatch.setattr(native, "available", lambda: not getattr(mine, "lacks_it", False))

    def begin(plan: gw.Plan, transports: list, rank: int) -> None:
        mine.lacks_it = rank == 1
        begin_and_end(plan, transports, rank)

    for compressor, differ in ((gw.PowerSGD(2), True), (gw.RandomK(0.1), False)):
        errors = together(2, partial(begin, gw.plans.uniform(SLOTS, compressor), gw.Threads.group(2)))
        assert ["differ in kernels: native (level" in str(error) for error in errors] == [differ, differ]
        assert [error is None for error in errors] == [not differ, not differ]


def test_jobs_follow_each_other_on_one_transport():
    transports = gw.Threads.group(2)
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    means = []
    for _ in range(2):
        with job(plan, SLOTS, 2, transports=transports, owns_mesh=False) as running:
            means.append(running.step(draw(SLOTS, 2, 0)))
    assert all(torch.equal(a, b) for a, b in zip(means[0][0], means[1][1], strict=True))
    raising(together(2, lambda rank: transports[rank].run(gw.Sum(gw.Message.plain(torch.ones(2))))))


BUSY = "this transport carries another job; make one for each, or first call handle.detach()"


def test_a_transport_carries_one_job_at_a_time_and_all_ranks_refuse_a_second_alike():
    transports = gw.Threads.group(2)
    plan = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())

    def second(rank: int) -> None:
        Runtime(lambda: plan, SLOTS, gw.Mesh.of(transports[rank]), CPU, JobOptions(owns_mesh=False)).close()

    with job(plan, SLOTS, 2, transports=transports, owns_mesh=False) as first:
        assert [(type(error).__mro__[1], str(error)) for error in together(2, second)] == [(ValueError, BUSY)] * 2
        # the first one goes on; where one rank has ended it, neither begins another
        first.step(draw(SLOTS, 2, 0))
        first.runtimes[0].close()
        assert [str(error) for error in together(2, second)] == [f"rank 1 cannot go on: {BUSY}"] * 2
    raising(together(2, second))


def test_a_transport_is_free_again_when_its_job_fails_or_is_dropped():
    def begin(transport: gw.Transport, inside: gw.Transport) -> Runtime:
        mesh = gw.Mesh({"replica": transport, "host": inside})
        return Runtime(lambda: gw.plans.uniform(SLOTS, gw.FP32()), SLOTS, mesh, CPU, JobOptions(owns_mesh=False))

    card = gw.Card(0.0, 1e12)
    between, other, inside = gw.Played(2, card), gw.Played(2, card), gw.Played(2, card)
    dropped: Any = begin(between, inside)
    dropped.itself = dropped  # as a model's hooks have it: only a garbage collection ends it
    del dropped
    failing = begin(between, inside)
    # on any axis
    with pytest.raises(ValueError, match="carries another job"):
        begin(other, inside)
    failing.fail(RuntimeError("as it may"))
    begin(other, inside).close()


@pytest.mark.parametrize("backend", ["", "cpu:gloo,cuda:gloo", pytest.param("gloo", marks=pytest.mark.long)])
def test_the_direct_exchange_is_on_whatever_the_group_was_called(backend: str):
    """`dist.get_backend` says "undefined" of a group that was made without a name."""
    program = (
        "import torch.distributed as dist, gradwire as gw\n"
        f"dist.init_process_group(*{[backend] if backend else []!r}, store=dist.HashStore(), rank=0, world_size=1)\n"
        "assert gw.ProcessGroup.own()._direct\n"
    )
    run_python(["-c", program])


def test_a_group_of_its_own_has_the_backends_of_the_one_that_it_is_like():
    program = (
        "import torch, torch.distributed as dist, gradwire as gw\n"
        "dist.init_process_group('cuda:gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "gw.ProcessGroup.own(dist.new_group(backend='gloo')).check(torch.device('cpu'))\n"
    )
    run_python(["-c", program])


def test_what_auto_refuses_is_refused_before_anything_is_opened():
    with pytest.raises(ValueError, match="says its bytes before a step"):
        StepChoices.of(None, candidates=[gw.MultiLevel()]).check()


def test_a_compressor_may_be_written_as_on_the_command_line_in_every_front_end():
    def wrapped(compressor: gw.Compressor | str) -> list[gw.DistributedOptimizer | gw.LocalSteps]:
        model = nn.Linear(8, 8)
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        [transport] = gw.Threads.group(1)
        return [
            gw.DistributedOptimizer(sgd, model, compressor, transport=transport),
            gw.LocalSteps(sgd, model, compressor, inner_steps=2, transport=transport),
        ]

    said, built = wrapped("topk:0.1"), wrapped(gw.TopK(0.1))
    assert [optimizer.handle.plan for optimizer in said] == [optimizer.handle.plan for optimizer in built]


def test_a_scheduler_of_a_wrapper_goes_on_when_the_optimizer_inside_has_loaded_a_state():
    for wrap in (gw.DistributedOptimizer, gw.LocalSteps):
        model = nn.Linear(8, 8)
        inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        [transport] = gw.Threads.group(1)
        optimizer = wrap(inner, model, gw.FP32(), transport=transport)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        inner.load_state_dict(inner.state_dict())
        optimizer.step()
        scheduler.step()
        assert inner.param_groups[0]["lr"] == 0.05
        optimizer.param_groups = [{**group, "lr": 0.3} for group in optimizer.param_groups]
        assert inner.param_groups[0]["lr"] == 0.3
        assert optimizer.state is inner.state


def test_hooks_of_both_optimizers_are_called_once_a_step():
    model, called = nn.Linear(8, 8), list[str]()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    [transport] = gw.Threads.group(1)
    optimizer = gw.DistributedOptimizer(inner, model, gw.FP32(), transport=transport)
    inner.register_step_pre_hook(lambda *_: called.append("inner"))
    optimizer.register_step_pre_hook(lambda *_: called.append("outer"))
    for _ in range(2):
        model(torch.ones(8)).sum().backward()
        optimizer.step()
    assert called == ["outer", "inner"] * 2
