"""The transport over NCCL, which is played: works that complete with an error, or block before they are there."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest
import torch
import torch.distributed as dist

import gradwire as gw
from gradwire.collective import Collective, Message, Sum
from gradwire.frontends.checkpoints.rendezvous import OFF
from gradwire.torch_private import process_groups
from gradwire.transports import connections, process_group
from tests.support.harness import SMALL, job, plan_of, slots_of
from tests.support.waiting import wait_until


class Group(dist.ProcessGroup):
    """As torch's group over NCCL, with what the transport asks of it."""

    _device_types = (torch.device("cuda"),)  # pyright: ignore
    bound_device_id = torch.device("cuda:0")  # pyright: ignore[reportIncompatibleVariableOverride]
    options = SimpleNamespace(_timeout=timedelta(seconds=60))  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, rank: int = 0, world: int = 2) -> None:
        super().__init__(rank, world)
        self._rank, self._world, self.error, self.aborted = rank, world, "SUCCESS", False

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._world

    def name(self) -> str:
        return "nccl"

    def _get_backend(self, device: torch.device) -> "Group":
        if device.type != "cuda":
            raise RuntimeError("no backend")
        return self

    def abort(self) -> None:
        self.aborted = True

    def get_error(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.error)


class Work:
    """As NCCL's, whose completion is asked of the GPU that is the thread's own: that makes a context there."""

    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        raise AssertionError("a GPU was asked")


class Played(gw.ProcessGroup):
    def start(self, op):
        return Work()


def transports(count: int = 2, kind: type = Played) -> list:
    store = dist.HashStore()
    return [kind(Group(rank, count), "a name", store) for rank in range(count)]


def message() -> Sum:
    return Sum(Message.plain(torch.zeros(1)))


def test_an_error_of_nccl_is_the_reason_why_collectives_will_not_end():
    """As of a host that died. Its works count as complete then."""
    first, _ = transports()
    first.start(message())
    assert first.lost(True) is None
    first._group.error = "COMM_ERROR"
    assert "COMM_ERROR" in first.lost(True)


@pytest.mark.parametrize("name", ["nccl", "nccl2", "nccl-lazy"])
def test_each_of_torchs_backends_over_nccl_is_taken_for_nccl(name: str, monkeypatch: pytest.MonkeyPatch):
    """From torch 2.15 on, a group made with "nccl" has one that is called nccl2; groups by members have the same."""
    monkeypatch.setattr(Group, "name", lambda self: name)
    transport = transports(1)[0]
    assert transport.needs_polling
    transport.check(torch.device("cuda"))
    # a group like it, which its members make
    asked: list[tuple[str, torch.device | None]] = []

    def make(kind: str, store: object, rank: int, size: int, options: object, device: torch.device | None = None):
        asked.append((kind, device))

    for kind in ("ProcessGroupNCCL", "ProcessGroupNCCL2"):
        backend = Mock(side_effect=partial(make, kind), Options=Options)
        monkeypatch.setattr(dist, kind, backend, raising=False)
    monkeypatch.setattr(dist.ProcessGroup, "_register_backend", lambda *given: None)
    group = process_groups.new_group_over(dist.HashStore(), "a name", 0, [0, 1], Group())
    assert asked == [("ProcessGroupNCCL", None) if name == "nccl" else ("ProcessGroupNCCL2", Group.bound_device_id)]
    assert group.bound_device_id == Group.bound_device_id


def test_no_gpu_is_asked_and_no_work_kept():
    first, _ = transports()
    works = [ref(first.start(message())) for _ in range(3)]
    first.lost(True)
    gc.collect()
    assert [work() for work in works] == [None] * 3


class Blocking(Played):
    """Whose first collective makes a communicator, for which all ranks must come."""

    def start(self, op):
        threading.Event().wait()


def test_a_rank_is_missed_by_one_that_is_still_in_a_collectives_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gradwire.transports.process_group.SILENT_S", 0.4)
    first, second = transports(kind=Blocking)
    first.look_s = 0.0
    second.lost(False)
    threading.Thread(target=first.start, args=(message(),), daemon=True).start()
    found = list[str | None]()
    assert wait_until(lambda: found.append(first.lost(True)) or found[-1])
    assert found[-1] == "a rank was lost (1 has given no sign of life for 0 s)"


def test_sends_and_receives_are_taken_as_one():
    """One by one each pair of ranks would get a communicator of its own, in mid-step."""
    said: list[str] = []
    group = SimpleNamespace(
        supports_coalescing=True, _get_backend=lambda device: group,
        _start_coalescing=lambda device: said.append("begin"), _end_coalescing=lambda device: "work",
    )  # fmt: skip
    calls = [lambda: said.append("receive"), lambda: said.append("send")]
    assert process_groups.at_once(group, torch.device("cuda"), calls) == ["work"]
    assert said == ["begin", "receive", "send"]
    assert process_groups.at_once(group, torch.device("cuda"), []) == []


def test_communicators_are_opened_before_the_first_step():
    started: list[Collective] = []

    class Opened(Played):
        def start(self, op):
            started.append(op)
            return Work()

    first, _ = transports(kind=Opened)
    gw.Mesh({"replica": first}).open(torch.device("cpu"))
    assert [type(op) for op in started] == [Sum]


def test_a_job_opens_its_connections(monkeypatch: pytest.MonkeyPatch):
    opened: list[int] = []
    monkeypatch.setattr(gw.Threads, "open", lambda self, device: opened.append(self.rank))
    slots = slots_of(SMALL)
    with job(plan_of(slots, gw.TopK(0.1), gw.Residual(), gw.AllGather()), slots, 2):
        assert sorted(opened) == [0, 1]


def test_a_close_that_waits_for_other_ranks_holds_up_training_for_a_moment_only(monkeypatch: pytest.MonkeyPatch):
    """Garbage collection closes a dropped model's on one rank, while the others train another model."""
    monkeypatch.setattr(process_group, "CLOSE_S", 0.05)
    first, _ = transports()
    first._group.shutdown = threading.Event().wait
    closing = threading.Thread(target=first.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


class Options:
    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream, self.config = is_high_priority_stream, SimpleNamespace(max_ctas=32)


def test_kernels_that_wait_for_a_slow_link_hold_few_multiprocessors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    few, many = (process_groups.options_of(Group(), few) for few in (True, False))
    assert (few.config.max_ctas, many.config.max_ctas) == (process_groups.FEW_CTAS, 32)
    assert few.is_high_priority_stream
    assert many.is_high_priority_stream
    assert few._timeout == timedelta(seconds=60)


def no_threads() -> None:
    raise AssertionError("NCCL connects at once, and its own threads are not ours")


@pytest.mark.parametrize("local", [1, 2])
def test_only_axes_between_hosts_of_several_ranks_wait_for_a_slow_link(local: int, monkeypatch: pytest.MonkeyPatch):
    """The options with which torch is asked for the groups of rank 1 of four: one over all ranks, or by members."""
    asked: list[tuple[list[int], Options]] = []

    def new_group(ranks: list[int], *, timeout: timedelta, pg_options: Options) -> Group:
        asked.append((ranks, pg_options))
        return Group(1, 4)

    def new_group_over(store: object, name: str, rank: int, ranks: list[int], like: Group, few: bool) -> Group:
        return new_group(ranks, timeout=timedelta(), pg_options=process_groups.options_of(like, few))

    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr("gradwire.transports.torch_store.default_store", dist.HashStore)
    monkeypatch.setattr(process_group, "world_or", lambda group: Group(1, 4))
    for name, value in {"get_rank": 1, "get_world_size": 4, "get_process_group_ranks": [0, 1, 2, 3]}.items():
        monkeypatch.setattr(dist, name, lambda *given, value=value: value)
    monkeypatch.setattr(process_group, "new_group_over", new_group_over)
    monkeypatch.setattr(process_group, "default_store", dist.HashStore)
    monkeypatch.setattr(connections, "in_batch", no_threads)
    monkeypatch.setattr(process_group, "meet", lambda rank, ranks, timeout_s: f"gradwire/{len(asked)}")
    gw.ProcessGroup.by_host(local)
    few = [(ranks, options.config.max_ctas == process_groups.FEW_CTAS) for ranks, options in asked]
    assert few == {1: [([0, 1, 2, 3], False), ([1], False)], 2: [([1, 3], True), ([0, 1], False)]}[local]
    assert all(options.is_high_priority_stream for _, options in asked)


def test_ranks_that_come_and_go_over_nccl_need_torchs_watchdog_off(monkeypatch: pytest.MonkeyPatch):
    for name in OFF:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="set TORCH_NCCL_ASYNC_ERROR_HANDLING and TORCH_NCCL_DUMP_ON_TIMEOUT to 0"):
        gw.Rendezvous(dist.HashStore(), backend="cpu:gloo,cuda:nccl")
    for name in OFF:
        monkeypatch.setenv(name, "0")
    gw.Rendezvous(dist.HashStore(), backend="nccl")


def test_a_group_over_nccl_is_left_by_an_abort(monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: done.append("abort"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroy"))
    monkeypatch.setattr(process_groups, "backend_of", lambda group, device: "nccl")
    with default_group(Group()):
        process_groups.leave_default_group()
    assert done == ["abort"]


@contextmanager
def default_group(group: Group) -> Iterator[None]:
    known: Any = dist.distributed_c10d._world.pg_map
    dist.group.WORLD, known[group] = group, ("nccl", None)
    try:
        yield
    finally:
        dist.group.WORLD = None
        del known[group]


@pytest.mark.parametrize(("elastic", "voted"), [(True, False), (False, False), (True, True)])
def test_ddps_own_collectives_end_with_an_elastic_job_which_goes_on_on_the_same_streams(elastic: bool, voted: bool):
    """A broadcast of its buffers waits for the lost rank, too, and torch's watchdog is off: a state would not be
    saved before it ends. Without `elastic` the group is the user's to end; under torchft, which votes, it joins this
    replica's own ranks."""
    slots, world = slots_of(SMALL), Group()
    plan = plan_of(slots, gw.TopK(0.1), gw.Residual(), gw.AllGather())
    with job(plan, slots, 2, elastic=elastic, voted=voted) as running, default_group(world):
        running.runtimes[0].fail(RuntimeError("out of memory"))
        assert world.aborted is (elastic and not voted)


@pytest.mark.parametrize(
    "reason",
    [
        "NCCL error in: a.cpp:1, invalid usage (run with NCCL_DEBUG=WARN for details)\nncclInvalidUsage: Duplicate GPU",
        "NCCL error in: a.cpp:1, unhandled cuda error (run with ...)\nLast error:\nCuda failure 2 'out of memory'",
        "NCCL init failed: unhandled cuda error (run with ...) \nNCCL Last Error: Cuda failure 2 'out of memory'",
    ],
)
def test_what_nccl_cannot_do_on_this_rank_is_no_lost_rank(reason: str):
    """Two ranks with one GPU, or no memory left for NCCL, in the words of both of torch's backends; at the first
    collective, where nothing of torch's has come before."""

    class Refused(Played):
        def start(self, op):
            raise dist.DistBackendError(reason)

    first, _ = transports(kind=Refused)
    with pytest.raises(dist.DistBackendError) as caught:
        gw.Mesh({"replica": first}).open(torch.device("cpu"))
    assert str(caught.value) == reason
