"""The axes of a mesh: the ranks' numbers, what they hand on, and calls of all axes."""

import threading
from collections.abc import Mapping
from functools import partial
from itertools import product
from math import prod
from unittest.mock import Mock

import pytest
import torch

import gradwire as gw
from gradwire.collective import HOST, REPLICA, Collective, Message, Sum
from gradwire.runtime.failures.job_errors import AbsentRanks
from gradwire.runtime.meeting import Meeting
from gradwire.transports import mesh
from gradwire.transports.mesh import SAME
from gradwire.transports.transport import Lost, Pending
from tests.support.harness import CPU, raising, together


def meshes(sizes: Mapping[str, int]) -> list[gw.Mesh]:
    """The mesh of each rank, whose axes have these sizes."""
    places = list(product(*map(range, sizes.values())))
    groups: dict[object, list[gw.Threads]] = {}
    return [
        gw.Mesh(
            {
                axis: groups.setdefault((axis, *place[:dim], *place[dim + 1 :]), gw.Threads.group(size))[place[dim]]
                for dim, (axis, size) in enumerate(sizes.items())
            }
        )
        for place in places
    ]


SIZES = [{"replica": 2, "shard": 3}, {"shard": 3, "replica": 2}, {"host": 2, "shard": 2, "replica": 2}]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_ranks_are_numbered_in_the_order_of_the_axes(sizes: Mapping[str, int]):
    world = meshes(sizes)
    places = [each.place(each.rank) for each in world]
    assert [each.rank for each in world] == list(range(prod(sizes.values())))
    assert places == [{axis: transport.rank for axis, transport in each.axes.items()} for each in world]
    # ranks hold the same part where they are at one place on all other axes
    parts = {
        place["shard"]: [rank for rank, other in enumerate(places) if other["shard"] == place["shard"]]
        for place in places
    }
    assert {each.averaged for each in world} == {len(part) for part in parts.values()}
    assert all(sorted(each.same_parts) == sorted(parts.values()) for each in world)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_ranks_gather_share_and_sum_follows_their_numbers(sizes: Mapping[str, int]):
    world = meshes(sizes)
    places = [each.place(each.rank) for each in world]
    source = len(world) - 2
    alike = [
        next(r for r, other in enumerate(places) if other == places[source] | {"shard": p["shard"]}) for p in places
    ]

    def talks(rank: int) -> list[list[int]]:
        own = world[rank]
        gathered = own.gather(torch.tensor([[rank, -1], [rank, -1]])[:, 0])  # with gaps between its numbers
        shared, parts, sums = (torch.tensor([rank]) for _ in range(3))
        own.share([shared], CPU, source=source)
        own.share([parts], CPU, source=source, axes=SAME)
        own.sum(sums, ["shard"])
        return [gathered[:, 0].tolist(), gathered[:, 1].tolist(), shared.tolist(), parts.tolist(), sums.tolist()]

    ranks = list(range(len(world)))
    for rank, received in enumerate(raising(together(len(world), talks))):
        along = [other for other, place in enumerate(places) if place == places[rank] | {"shard": place["shard"]}]
        assert received == [ranks, ranks, [source], [alike[rank]], [sum(along)]]


class Noting(gw.Threads):
    """A transport of one rank, which polls, and notes what it is asked."""

    needs_polling = True

    def __init__(self, timeout_s: float, error: type[Exception]) -> None:
        inner = gw.Threads.group(1)[0]
        super().__init__(0, inner._hub)
        self.timeout_s, self.error, self.why, self.calls = timeout_s, error, "", list[str]()

    def open(self, device: torch.device) -> None:
        self.calls.append("open")
        if self.why:
            raise self.error(self.why)

    def start(self, op: Collective) -> Pending:
        raise self.error(self.why)

    def wait(self) -> None:
        """As its own pending collective."""
        raise self.error(self.why)

    def check(self, device: torch.device) -> None:
        self.calls.append("check")

    def close(self) -> None:
        self.calls.append("close")
        if self.why:
            raise self.error(self.why)

    def lost(self, waits: bool) -> str | None:
        self.calls.append("lost")
        return self.why or None

    def failure(self) -> str | None:
        return self.why or None


@pytest.mark.parametrize("error", [RuntimeError, ConnectionResetError, TimeoutError])
@pytest.mark.parametrize("broken", [0, 1])
def test_calls_reach_all_axes_and_the_error_of_one_is_raised(broken: int, error: type[Exception]):
    axes = [Noting(timeout_s, error) for timeout_s in (30.0, 60.0)]
    both = gw.Mesh(dict(zip((REPLICA, HOST), axes, strict=True)))
    both.open(CPU)
    axes[broken].why, axes[1 - broken].timeout_s = "it broke", 20.0
    assert (both.lost(True), both.failure()) == ("it broke", "it broke")
    assert both.timeout_s == both.gives_up_s == 20.0
    op = Sum(Message.plain(torch.zeros(1)), (REPLICA, HOST)[broken])
    for call in (both.open, CPU), (both.start, op), (both.run, op), (both.wait, axes[broken]):
        with pytest.raises(Lost, match="it broke"):
            call[0](call[1])
    axes[broken].needs_polling = False
    assert both.needs_polling
    both.check(CPU)
    with pytest.raises(error, match="it broke"):
        both.close()
    for axis in axes:
        assert axis.calls[0] == "open"
        assert axis.calls[-2:] == ["check", "close"]
        assert "lost" in axis.calls, "each leaves its heartbeat"


CALLS = "set", "get", "add", "check", "delete"
"""Of a store."""


def test_a_jobs_store_that_is_gone_is_a_lost_rank():
    """And not a mistake of the rank that asks: rank 0's process may have it."""
    gone = Mock(**{"check.return_value": False})
    store = gw.Mesh({REPLICA: gw.Threads.group(1)[0]}, gone).for_job().store
    gone.configure_mock(**{f"{each}.side_effect": RuntimeError("no answer") for each in CALLS})
    for call in (
        partial(store.set, "key", "value"), partial(store.get, "key", 0), partial(store.add, "key", 1),
        partial(store.check, ["key"]), partial(store.delete, "key"),
    ):  # fmt: skip
        with pytest.raises(Lost, match="no answer"):
            call()


def test_a_mesh_aborts_its_axes_at_once_and_waits_for_none_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mesh, "ABORT_S", 0.05)
    returns, reasons = threading.Event(), []

    class Stuck(gw.Threads):
        def abort(self, reason: str) -> None:
            reasons.append(reason)
            returns.wait()

    both = gw.Mesh({REPLICA: Stuck.group(1)[0], HOST: Stuck.group(1)[0]})
    both.take(None)
    both.abort("a reason")
    assert reasons == ["a reason"] * 2
    gw.Mesh(both.axes).take(None)  # they may carry another job
    returns.set()


def test_a_mesh_counts_a_silent_rank_of_an_axis_among_all_ranks():
    replica, host = gw.Threads.group(3)[1], gw.Threads.group(2)[0]
    both = gw.Mesh({REPLICA: replica, HOST: host})
    assert (both.rank, both.silent) == (2, set())
    replica.silent, host.silent = 2, 1
    assert both.silent == {4, 3}


@pytest.mark.parametrize("late", [0, 1])
def test_ranks_of_a_mesh_meet_after_a_job_to_which_one_did_not_come(late: int):
    group = gw.Threads.group(2)
    for transport in group:
        transport.timeout_s = 0.4

    def meets(rank: int) -> None:
        Meeting(gw.Mesh.of(group[rank]).for_job()).compare({"call": "attach()"})

    with pytest.raises(AbsentRanks, match=rf"rank {late} did not come to attach\(\)"):
        meets(1 - late)
    for transport in group:
        transport.timeout_s = 20.0
    raising(together(2, meets))
