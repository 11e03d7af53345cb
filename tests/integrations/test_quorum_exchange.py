"""A replica's vote, where the exchange ends meanwhile; without torchft, which `test_torchft.py` needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gradwire as gw
from gradwire.checkpoint import unpack
from gradwire.frontends.checkpoints.elastic_resume import without_memories
from gradwire.frontends.null_job import NullFrontEnd
from gradwire.integrations import quorum_exchange
from gradwire.integrations.quorum_exchange import QuorumExchange
from gradwire.plans import uniform
from gradwire.runtime.failures.job_errors import PeerFailed
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.runtime import Runtime
from tests.integrations.test_integrations import without_package
from tests.support import harness
from tests.support.harness import SMALL, draw, plan_of, raising, slots_of

SLOTS = slots_of(SMALL)


def end(runtime: Runtime) -> None:
    """As the monitor does where another replica has left."""
    runtime.fail(PeerFailed("reducing ended", "rank 1 has left the job"))


def end_while_threads_wait(runtime: Runtime) -> None:
    """At the moment when steps count no more, and the threads that wait have not heard it."""
    runtime._executor.fail_waiters = lambda error: None
    end(runtime)


def end_once_it_is_counted(runtime: Runtime) -> None:
    runtime._active.step_ended = lambda: end(runtime)


class ProcessGroupGloo:
    """torchft's."""


class Manager:
    """torchft's, of which all vote yes; `meanwhile` is what happens until the votes are there."""

    _use_async_quorum, _quorum_id, _group_rank, _group_world_size = False, 1, 0, 1
    _replica_world_size_mode = SimpleNamespace(name="DYNAMIC")

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._pg: Any = ProcessGroupGloo()
        self._meanwhile, self.step, self.reported = meanwhile, 0, list[Exception]()

    def current_step(self) -> int:
        return self.step

    def start_quorum(self) -> None: ...

    def errored(self) -> Exception | None:
        return self.reported[0] if self.reported else None

    def report_error(self, error: Exception) -> None:
        self.reported.append(error)

    def register_state_dict_fn(self, _: str, heal: Callable[..., None], shared: Callable[..., Any]) -> None:
        self.heal, self.shared = heal, shared

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]

    def should_commit(self) -> bool:
        self._meanwhile()
        self.step += not self.reported
        return not self.reported


@contextmanager
def voted(meanwhile: Callable[[Runtime], None]) -> Iterator[tuple[QuorumExchange, Manager]]:
    """One of two replicas, behind a step that both have voted for."""
    plan = plan_of(SLOTS, gw.PowerSGD(2), gw.Residual(), gw.AllReduce())
    with harness.job(plan, SLOTS, 2, elastic=True, voted=True) as running:
        own, other = running.runtimes
        manager = Manager(lambda: None if manager.step else meanwhile(own))
        exchange = QuorumExchange(manager, lambda mesh: pytest.fail("met"), lambda step: step, None)
        exchange.runtime, exchange.handle, exchange._quorum = own, gw.Handle(own, NullFrontEnd()), 1
        running.step(draw(SLOTS, 2, 0))
        other.commit()
        assert exchange.vote()
        yield exchange, manager


@pytest.mark.parametrize("meanwhile", [end, end_while_threads_wait, end_once_it_is_counted])
def test_a_step_that_was_voted_for_counts_though_another_replica_has_left_meanwhile(meanwhile):
    with voted(lambda runtime: None) as (undisturbed, _):
        expected = undisturbed.state()
    with voted(meanwhile) as (exchange, manager):
        for _ in range(2):
            assert same(exchange.state(), expected)
            # the next step is voted down, and changes nothing
            exchange.begin()
            assert "has ended in this quorum" in str(manager.reported)
            assert not exchange.vote()


def kinds(state: dict[str, Any]) -> set[str]:
    """What a state has of each slot."""
    return {kind for tensors in unpack(state).exported.values() for kind in tensors}


def test_a_replica_that_is_behind_has_its_memories_alone_and_gives_others_all_but_these():
    with voted(end) as (exchange, manager):
        whole = exchange.state()["memories"]
        assert kinds(whole) == {"residual", "shared/q"}
        assert kinds(manager.shared()) == {"shared/q"}
        # others have gone on without it
        manager.step = 3
        own = exchange.state()["memories"]
        assert kinds(own) == {"residual"}
        for name, tensors in unpack(own).exported.items():
            assert torch.equal(tensors["residual"], unpack(whole).exported[name]["residual"])


@pytest.mark.parametrize("has_met", [False, True])
def test_a_replica_that_heals_keeps_what_it_has_sent_since_and_no_checkpoints_memories(has_met: bool):
    with voted(end) as (exchange, manager):
        exchange._has_met = has_met
        manager.heal(manager.shared())
        assert bool(exchange.state()["memories"]) == has_met


def test_a_replica_goes_on_from_the_least_step_of_its_ranks():
    manager = Manager(lambda: None)
    exchange = QuorumExchange(manager, lambda mesh: pytest.fail("met"), lambda step: step - 2, None)
    manager.step = 5
    exchange.begin()
    assert manager.step == 3
    assert "has not healed" in str(manager.reported)


@pytest.mark.parametrize("ratio", [0.1, 0.05], ids=["options", "replan"])
def test_replicas_whose_controllers_differ_by_a_step_go_on_together(ratio: float, monkeypatch: pytest.MonkeyPatch):
    """Of two, one has heard that the exchange has ended before it counts a step that both have voted for. The plan is
    that of their options, or another one that was installed since."""
    plan, asked = (plan_of(SLOTS, gw.TopK(each), gw.Residual(), gw.AllGather()) for each in (0.1, ratio))
    monkeypatch.setattr(quorum_exchange, "ProcessGroup", SimpleNamespace(beside=lambda parent: parent))
    transports = gw.Threads.group(2)

    def options() -> JobOptions:
        return JobOptions(controller=gw.WarmUp(0.4, steps=8), elastic=True, voted=True, plan_for=lambda slots: plan)

    def make(mesh: gw.Mesh) -> tuple[Runtime, Any]:
        return Runtime(lambda: plan, SLOTS, mesh, harness.CPU, options()), NullFrontEnd()

    with harness.job(
        plan, SLOTS, 2, controllers=[gw.WarmUp(0.4, steps=8) for _ in range(2)], elastic=True, voted=True
    ) as running:
        running.install(asked)
        running.step(draw(SLOTS, 2, 0))
        running.runtimes[0].commit()
        running.runtimes[1]._steps.count()
        states = running.states()
    assert not torch.equal(states[0]["//done"], states[1]["//done"])
    managers, exchanges = [Manager(lambda: None) for _ in range(2)], list[QuorumExchange]()
    for manager, transport, state in zip(managers, transports, states, strict=True):
        exchanges.append(QuorumExchange(manager, make, lambda step: step, None))
        manager._pg.parent, manager.step = transport, 1
        exchanges[-1]._states, exchanges[-1]._has_met = {1: state}, True
    raising(harness.together(2, lambda rank: exchanges[rank].begin()))
    for exchange, manager, state in zip(exchanges, managers, states, strict=True):
        assert not manager.reported
        went_on = exchange.state()["memories"]
        assert torch.equal(went_on["//done"], states[0]["//done"])
        assert exchange.runtime is not None
        assert exchange.runtime._active.origin == asked
        assert all(torch.equal(went_on[key], state[key]) for key in state if key.endswith("residual"))
        exchange.handle.leave()


def test_a_new_replica_that_differs_ends_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quorum_exchange, "ProcessGroup", SimpleNamespace(beside=lambda parent: parent))
    plan, transports = plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), gw.Threads.group(2)

    def begin(rank: int) -> Manager:
        manager = Manager(lambda: None)
        manager._pg.parent = transports[rank]
        options = JobOptions(seed=rank, elastic=True, voted=True)

        def make(mesh: gw.Mesh) -> tuple[Runtime, Any]:
            return Runtime(lambda: plan, SLOTS, mesh, harness.CPU, options), NullFrontEnd()

        exchange = QuorumExchange(manager, make, lambda step: step, None)
        exchange._has_met = rank == 0
        exchange.begin()
        return manager

    present, new = harness.together(2, begin)
    assert "differ in seed" in str(present.reported)
    with pytest.raises(ValueError, match="differ in seed"):
        raise new


class TorchftOptimizer:
    """torchft's, which keeps what it is given."""

    def __init__(self, manager: Any, optim: torch.optim.Optimizer) -> None:
        self.manager, self.optim = manager, optim


@contextmanager
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`gradwire.integrations.torchft`, whose replicas are threads."""
    monkeypatch.setattr(quorum_exchange, "ProcessGroup", SimpleNamespace(beside=lambda parent: parent))
    stands_in = SimpleNamespace(Optimizer=TorchftOptimizer)
    with without_package("torchft", stands_in, "gradwire.integrations.torchft") as module:
        yield module


def local_steps(module: Any, transport: Any, compressor: gw.Compressor | gw.Plan) -> Any:
    model = torch.nn.Linear(80, 60)
    manager = Manager(lambda: None)
    manager._pg.parent = transport
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return module.FaultTolerantLocalSteps(manager, inner, model, compressor, inner_steps=2)


def test_local_steps_refuse_compressors_that_make_no_means(monkeypatch: pytest.MonkeyPatch):
    (transport,) = gw.Threads.group(1)
    with adapter(monkeypatch) as module:
        with pytest.raises(ValueError, match="makes updates of gradients, and local steps average movements"):
            local_steps(module, transport, gw.Dion(2))
        with pytest.raises(ValueError, match="a native plan leaves reducing to DDP"):
            local_steps(module, transport, gw.NATIVE)
        optimizer = local_steps(module, transport, gw.TopK(0.1))
        names = tuple(name for group in optimizer.handle.plan.groups for name in group.slots)
        with pytest.raises(ValueError, match="local steps average movements"):
            optimizer.handle.replan(gw.Plan((gw.Group(names, gw.Dion(2), gw.Residual(), gw.AllReduce()),)))
        optimizer.handle.leave()


def test_local_steps_of_many_replicas_have_a_plan_for_many(monkeypatch: pytest.MonkeyPatch):
    transports = gw.Threads.group(12)
    with adapter(monkeypatch) as module:
        made = raising(harness.together(12, lambda rank: local_steps(module, transports[rank], gw.Quantized(8))))
        plans = {optimizer.handle.plan for optimizer in made}
        (plan,) = plans
        assert gw.ScatterReduce() in [group.communicator for group in plan.groups]
        with pytest.raises(ValueError, match="local steps send nothing in backward to trace"):
            made[0].handle.trace()
        raising(harness.together(12, lambda rank: made[rank].handle.leave()))


@pytest.mark.parametrize("own", [False, True])
def test_default_collectives_follow_the_quorum_and_a_plan_of_the_users_stays(own: bool, monkeypatch):
    def made_for(replicas: int) -> gw.Plan:
        return uniform(SLOTS, gw.Quantized(8), gw.Residual(), ranks=replicas)

    two, twelve, other = made_for(2), made_for(12), plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    assert two != twelve
    monkeypatch.setattr(quorum_exchange, "ProcessGroup", SimpleNamespace(beside=lambda parent: parent))

    def make(mesh: gw.Mesh) -> tuple[Runtime, Any]:
        options = JobOptions(elastic=True, voted=True)
        return Runtime(lambda: made_for(mesh.ranks), SLOTS, mesh, harness.CPU, options), NullFrontEnd()

    # two replicas take a step, then ten more come
    with harness.job(two, SLOTS, 2, elastic=True, voted=True) as running:
        if own:
            running.install(other)
        running.step(draw(SLOTS, 2, 0))
        for runtime in running.runtimes:
            runtime.commit()
        states = running.states()
    transports, exchanges = gw.Threads.group(12), list[QuorumExchange]()
    for rank, transport in enumerate(transports):
        manager = Manager(lambda: None)
        exchanges.append(QuorumExchange(manager, make, lambda step: step, None))
        manager._pg.parent, manager.step = transport, 1
        exchanges[-1]._states, exchanges[-1]._has_met = ({1: states[rank]} if rank < 2 else {}), True
        if rank >= 2:
            exchanges[-1]._heal(without_memories(states[0]))
    raising(harness.together(12, lambda rank: exchanges[rank].begin()))
    assert {exchange.handle.plan for exchange in exchanges} == {other if own else twelve}
    # with the memories that they had
    for exchange, state in zip(exchanges, states, strict=False):
        went_on = unpack(exchange.state()["memories"]).exported
        for name, tensors in unpack(state).exported.items():
            if "residual" in tensors:
                torch.testing.assert_close(went_on[name]["residual"], tensors["residual"])
    raising(harness.together(12, lambda rank: exchanges[rank].handle.leave()))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states are of one step, with the same memories bit for bit."""
    pairs = ((state["step"], unpack(state["memories"])) for state in (one, other))
    (step, mine), (after, its) = pairs
    torch.testing.assert_close(mine.exported, its.exported, rtol=0, atol=0)
    return (step, mine.step) == (after, its.step) == (1, 1)
