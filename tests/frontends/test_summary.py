"""`handle.summary()`: the plan's groups, what a step sends, where its time goes."""

import gc
from math import isinf
from weakref import ref

import pytest
import torch

import gradwire as gw
from gradwire.frontends.handle import Handle
from gradwire.frontends.summary import table
from gradwire.ops import backend
from gradwire.ops.backend import in_use
from gradwire.ops.workspace import Workspace, scratch_on
from gradwire.runtime.stats import Stats
from tests.support.harness import CPU, draw, hosts, job, slots_of

SLOTS = slots_of({"wide": torch.empty(40, 50), "tall": torch.empty(300, 4), "bias": torch.empty(7)})
PLAN = gw.Plan((
    gw.Group(("wide", "tall"), gw.TopK(0.1), gw.Residual(), gw.AllGather()),
    gw.Group(("bias",), gw.FP32(), gw.NoMemory(), gw.AllReduce()),
))  # fmt: skip


def test_a_summary_has_a_row_for_each_group_and_figures_of_a_step():
    with job(PLAN, SLOTS, 2) as running:
        handle = Handle(running.runtimes[0], None)  # pyright: ignore
        running.step(draw(SLOTS, 2, seed=0))
        once = handle.summary().splitlines()
        running.step(draw(SLOTS, 2, seed=1))
        twice, stats = handle.summary().splitlines(), handle.stats()
    assert once[0].startswith("<Handle rank 0 of 2")
    assert once[1].split() == ["group", "tensors", "elements", "compressor", "memory", "communicator"]
    assert once[2].split() == ["0", "2", "3,200", "TopK(ratio=0.1)", "Residual", "AllGather"]
    assert once[3].split() == ["1", "1", "7", "FP32", "NoMemory", "AllReduce"]
    assert len({line.index(word) for line, word in zip(once[1:4], ("compressor", "TopK", "FP32"), strict=True)}) == 1
    sent = (
        f"sent a step: {stats.wire_bytes / 2e3:,.1f} kB; dense {4 * 3207 / 1e3:.1f} kB; {stats.ratio:.1f} times fewer"
    )
    assert once[4] == twice[4] == sent
    assert stats.wire_bytes > 0
    # two halves of the residual, and little beside them
    held = stats.held_bytes / sum(slot.numel for slot in SLOTS)
    assert twice[6] == f"memory held: {stats.held_bytes / 1e6:.1f} MB, {held:.1f} bytes a parameter"
    assert 8 <= held < 16
    assert twice[7] == f"kernels: {in_use(CPU)}"


@pytest.mark.parametrize(("count", "rows"), [(30, 30), (400, 2)])
def test_a_summary_of_many_groups_is_neither_wide_nor_long(count: int, rows: int):
    sparse = gw.TopK(0.05, value_bits=4), gw.Residual(0.9), gw.AllGather()
    names = [f"blocks.{number}.weight" for number in range(count)]
    ways = [(gw.FP32(), gw.NoMemory(), gw.AllReduce()) if number % 4 else sparse for number in range(count)]
    plan = gw.Plan(tuple(gw.Group((name,), *way) for name, way in zip(names, ways, strict=True)))
    lines = table(plan, dict.fromkeys(names, 10**7), Stats(0, 0, 0, 0.0, 0.0, 0.0, 0.0)).splitlines()
    assert lines[rows + 1].startswith("sent a step")
    assert max(map(len, lines)) <= 100
    cells = lines[1].split()
    assert cells[3:] == ["TopK(ratio=0.05,", "value_bits=4)", "Residual(decay=0.9)", "AllGather"]
    assert cells[:3] == (["0", "1", "10,000,000"] if count == rows else ["100", "100", "1,000,000,000"])


def test_the_first_line_of_a_summary_leaves_the_plan_to_the_table():
    """It was as wide as the plan has ways to send."""
    ways = [
        (gw.TopK(0.05, value_bits=4), gw.AllGather()),
        (gw.Quantized(4), gw.AllGather()),
        (gw.FP32(), gw.AllReduce()),
    ]
    groups = (gw.Group((slot.name,), way[0], gw.NoMemory(), way[1]) for slot, way in zip(SLOTS, ways, strict=True))
    with job(gw.Plan(tuple(groups)), SLOTS, 2) as running:
        handle = Handle(running.runtimes[0], None)  # pyright: ignore
        first, *lines = handle.summary().splitlines()
    assert first == "<Handle rank 0 of 2; 0 steps>"
    assert max(map(len, lines)) <= 100


def test_the_memory_held_has_what_kernels_keep_on_the_worker():
    def work(floats: int, keys: int) -> None:
        scratch_on(CPU).tensor("work", (floats,))
        scratch_on(CPU).once("table", lambda: torch.zeros(keys, dtype=torch.int64))
        # in tuples and lists, too, and what is viewed twice counts once
        whole = torch.zeros(2 * keys, dtype=torch.int64)
        scratch_on(CPU).once("tables", lambda: [("name", whole[:keys]), ("other", whole[keys:])])
        scratch_on(CPU).latest("last", 1, lambda: torch.zeros(keys, dtype=torch.int64))

    with job(PLAN, SLOTS, 2) as running:
        runtime = running.runtimes[0]
        running.step(draw(SLOTS, 2, seed=0))
        before = runtime.stats().held_bytes
        runtime._executor.call(lambda: work(1000, 50))
        assert runtime.stats().held_bytes == before + 4 * 1000 + 4 * 8 * 50


def test_while_the_framework_reduces_by_itself_only_what_memories_hold_is_kept():
    with job(PLAN, SLOTS, 2, no_native="") as running:
        running.step(draw(SLOTS, 2, seed=0))
        steps = running.runtimes[0]._steps
        exchange, before = ref(steps.exchanges[0]), running.runtimes[0].stats().held_bytes
        running.install(gw.NATIVE)
        for runtime in running.runtimes:
            runtime.native_begins()
        running.finish()
        gc.collect()
        assert exchange() is None
        assert {*running.runtimes[0]._collector._tensors} == {None}
        assert 8 * 3200 <= running.runtimes[0].stats().held_bytes == steps.store.nbytes < before


def test_the_memory_held_is_counted_while_another_thread_adds_to_it():
    scratch, grown = Workspace(CPU), torch.zeros(10)

    class Growing(torch.Tensor):
        """Has another table made when it is counted."""

        def untyped_storage(self) -> torch.UntypedStorage:
            scratch.once("more", lambda: grown)
            scratch.tensor("other", (5,))
            return grown.untyped_storage()

    scratch.once("table", lambda: torch.zeros(10).as_subclass(Growing))
    assert scratch.nbytes == 40


def test_what_a_job_on_a_cpu_says_of_kernels_tries_no_gpu(monkeypatch: pytest.MonkeyPatch):
    def tried(device: torch.device) -> tuple[None, str]:
        asked.append(device)
        return None, "tried"

    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(backend, "on_gpu", tried)
    with job(PLAN, SLOTS, 2) as running:
        assert "GPU" not in running.runtimes[0].stats().kernels
        assert repr(Handle(running.runtimes[0], None))  # pyright: ignore
    assert not asked
    # a job on a GPU says it of that one; without a job it is the present one
    assert in_use(torch.device("cuda", 3)).endswith("on a GPU torch (tried)")
    assert in_use().endswith("on a GPU torch (tried)")
    assert asked == [torch.device("cuda", 3), torch.device("cuda", 1)]


def test_ranks_that_share_a_host_count_what_they_send_for_it_and_what_ddp_would():
    """Of three ranks two lead a group each, which no compressor makes smaller: a ring over all ranks sends 5 / 3 of it
    over a host's link, and a sum over two hosts once."""
    plan = gw.Plan(tuple(gw.Group((name,), gw.FP32(), gw.NoMemory(), gw.AllReduce()) for name in ("wide", "tall")))
    slots = SLOTS[:2]
    with job(plan, slots, 6, transports=hosts(2, 3)) as running:
        running.step(draw(slots, 6, seed=0))
        handles = [Handle(runtime, None) for runtime in running.runtimes]  # pyright: ignore
        stats, said = [handle.stats() for handle in handles], [handle.summary() for handle in handles]
    for rank, elements in enumerate([2000, 1200, 0] * 2):
        assert stats[rank].dense_bytes == pytest.approx(5 / 3 * 4 * elements, abs=2)
        if elements:
            assert stats[rank].ratio == pytest.approx(5 / 3, rel=0.02)
            assert f"dense {stats[rank].dense_bytes / 1e3:.1f} kB; 1.7 times fewer" in said[rank]
        else:
            assert isinf(stats[rank].ratio)
            assert "times fewer" not in said[rank]


def test_times_are_those_of_a_step():
    stats = Stats(steps=4, wire_bytes=8000, dense_bytes=32_000_000, encode_s=0.4, wire_s=0.8, decode_s=0.02, wait_s=0.1)
    *_, sent, spent, _, _ = table(PLAN, {"wide": 2000, "tall": 1200, "bias": 7}, stats).splitlines()
    assert sent == "sent a step: 2.0 kB; dense 8,000.0 kB; 4000.0 times fewer"
    assert spent == "time a step: encode 100.00 ms, wire 200.00 ms, decode 5.00 ms, waited for 25.00 ms"


def test_where_nothing_is_compressed_a_summary_says_so_and_before_any_step_nothing_is_divided():
    native = table(gw.NATIVE, {}, Stats(0, 0, 0, 0.0, 0.0, 0.0, 0.0))
    assert native.splitlines()[0] == gw.NATIVE.describe()
    assert "sent a step: 0.0 kB" in native
    idle = gw.attach(torch.nn.Linear(3, 4), "topk:0.1")
    assert idle.summary() == repr(idle)
