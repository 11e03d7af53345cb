"""Recorded turns, on a tape: what is replayed is what would have been computed, to the last bit."""

import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.controllers import StepView
from gradwire.ops import backend
from gradwire.runtime.exchanges.recordings import MOST
from gradwire.runtime.worker.executor import Executor
from gradwire.runtime.worker.graphs import CUDAGraphs, NothingCollected
from tests.support.cases import CASES, Case, rows
from tests.support.fixed import PARAMETERS, Fixed, Script
from tests.support.harness import draw, job, plan_of, slots_of
from tests.support.pretend_cuda import GPU, PretendedGPU, on_gpu, pretended_cuda, real
from tests.support.states import earlier
from tests.support.tape import PretendingExecutor, Tape, taped

WORLD = 2
SLOTS = slots_of(PARAMETERS)


def outcome(
    plan: gw.Plan, script: Script, *, records: bool, triton: bool = False, **options: Any
) -> tuple[list[Tensor], Fixed]:
    """All means, and in the end all state."""
    seen: list[Tensor] = []
    with taped(records=records, triton=triton):
        running = Fixed(plan, SLOTS, WORLD, **options)
        try:
            running.begin()
            script(running, lambda means: seen.extend(mean for own in means for mean in own))
            for state in running.states():
                seen += [real(tensor) for _, tensor in sorted(earlier(state).items())]
        finally:
            running.close()
    return seen, running


def same(plan: gw.Plan, script: Script, *, replayed: bool = True, **options: Any) -> Fixed:
    """The job that recorded; it did what one that computes does."""
    expected, _ = outcome(plan, script, records=False, **options)
    before = Tape.replayed
    found, job = outcome(plan, script, records=True, **options)
    assert (Tape.replayed > before) is replayed, job.runtimes[0].stats().recorded
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))
    return job


def steps(count: int, first: int = 0) -> Script:
    def script(job: Fixed, see: Callable[[Any], None]) -> None:
        for number in range(first, first + count):
            see(job.step(draw(SLOTS, WORLD, number)))

    return script


def of(case: Case, groups: int = 2) -> gw.Plan:
    return plan_of(SLOTS, case.compressor, case.memory, case.communicator, groups=groups)


@rows(CASES)
def test_replayed_steps_are_those_that_would_have_been_computed(case: Case):
    """Two groups, whose turns alternate; a class that says it is recordable is, and others are computed."""
    job = same(of(case), steps({1: 5, 2: 7}.get(case.phases(WORLD), 12)), replayed=case.recordable)
    why = "2 of 2 groups" if case.recordable else "is not recordable"
    assert why in job.runtimes[0].stats().recorded


def test_a_stream_reads_whether_collectives_were_aborted_and_nobody_waits():
    with taped(records=False):
        executor = PretendingExecutor(GPU)
        try:
            for aborted in (False, True):
                if aborted:
                    executor.abort()
                executor.post(executor.nan_if_aborted)
                executor.flush()
                assert bool(real(executor.found_abort())) is aborted
        finally:
            executor.close()
    assert executor.gpu.kernels["copy_"] == 2
    assert not executor.gpu.syncs + executor.gpu.pageable


def test_all_but_what_decides_on_the_host_are_recordable():
    parts = {part for case in CASES for part in (case.compressor, case.memory, case.communicator)}
    others = {type(part) for part in parts if not part.recordable}
    assert others == {gw.MultiLevel, gw.OkTopk}


@pytest.mark.parametrize("codec", [gw.QSGD(), pytest.param(gw.TopK(0.05), marks=pytest.mark.long)], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is numpy, which warns of infinities
def test_launches_of_kernels_are_replayed(codec: gw.Codec):
    same(of(Case(codec, gw.Residual(), gw.AllGather(), 3)), steps(5), triton=True)


TOP_K = Case(gw.TopK(0.05), gw.Residual(), gw.AllGather(), 3)
LOW_RANK = Case(gw.ACPSGD(2), gw.Residual(), gw.AllReduce(), 32)
pairs = pytest.mark.parametrize("case", [TOP_K, LOW_RANK, Case(gw.FP32(), gw.NoMemory(), gw.AllReduce(), 32)], ids=str)


@pairs
def test_skipped_steps_and_absent_gradients_between_replayed_ones(case: Case):
    """Of gradients that are not finite, and those that the user takes back; a step with an absent slot is computed."""

    def script(job: Fixed, see: Callable[[Any], None]) -> None:
        for number in range(24):
            grads: list[list[Any]] = [list(own) for own in draw(SLOTS, WORLD, number)]
            if number in (0, 1, 13, 14):
                grads[number % WORLD][2] = torch.full(SLOTS[2].shape, torch.inf)
            if number in (11, 17):
                grads[0][0] = None
            see(job.step(grads))
            if number == 19:
                with PretendedGPU():
                    job.skip()

    same(of(case), script)


@pairs
def test_a_new_plan_a_state_and_other_places_drop_what_was_recorded(case: Case):
    def script(job: Fixed, see: Callable[[Any], None]) -> None:
        steps(8)(job, see)
        job.install(of(case, groups=1))
        steps(8, 8)(job, see)
        job.load(job.states())
        steps(8, 16)(job, see)
        job.begin()
        job.finish()
        # what was noted of the old places would hold them
        assert not any(group._seen for runtime in job.runtimes for group in runtime._steps.recordings._groups)
        steps(8, 24)(job, see)

    job = same(of(case), script)
    assert job.runtimes[0].stats().recorded == "1 of 1 groups"


def test_a_reused_threshold_is_recorded_once_however_long_it_is_reused():
    """On a GPU all its steps are exact top-k."""
    case = Case(gw.ReusedThreshold(0.05, reuse=17), gw.Residual(), gw.AllGather(), 3)
    same(of(case, groups=1), steps(5))


@pytest.mark.parametrize(("world", "recorded"), [(15, True), (17, False), (32, True), (34, False)])
def test_what_takes_turns_among_many_ranks_differs_too_often(world: int, recorded: bool):
    """Each rank's turn, in each half of the residual."""
    phases = {(gw.LeaderIndices().phase(step, world), step % 2) for step in range(2 * world)}
    assert (len(phases) <= MOST) is recorded


def test_a_loss_scale_is_read_where_it_lies():
    """It grows, halves, and is a new tensor."""

    def script(job: Fixed, see: Callable[[Any], None]) -> None:
        for number in range(20):
            real(scale[0]).fill_(2.0 ** (number % 5))
            if number == 12:
                scale[0] = on_gpu(torch.tensor(3.0))
            see(job.step(draw(SLOTS, WORLD, number)))

    scale = [on_gpu(torch.tensor(1.0))]
    same(of(TOP_K), script, scale=lambda: scale[0])


def test_gradients_that_lie_elsewhere_at_every_step_are_not_recorded():
    def script(job: Fixed, see: Callable[[Any], None]) -> None:
        for number in range(6):
            job.begin()
            see(job.step(draw(SLOTS, WORLD, number)))

    job = same(of(TOP_K), script, replayed=False)
    assert "steps have not all come" in job.runtimes[0].stats().recorded


@dataclass(frozen=True)
class Growing(gw.TopK, recordable=True):
    """Makes a buffer at every step, or at the first ones."""

    most: int = 10**9

    def encode(self, vector: Any, payloads: Tensor, parts: Any) -> None:
        GROWN[0] += 1
        parts.context.buffers.tensor(f"more {min(GROWN[0], self.most)}", (1,))
        super().encode(vector, payloads, parts)


@dataclass(frozen=True)
class Asking(gw.TopK, recordable=True):
    """Asks for a number."""

    def encode(self, vector: Any, payloads: Tensor, parts: Any) -> None:
        super().encode(vector, payloads, parts)
        vector.total().amax().item()


@dataclass(frozen=True)
class Own(gw.TopK):
    """Says nothing."""


GROWN = [0]
REFUSED = {Growing(0.05): "new buffers", Asking(0.05): "the host asks", Own(0.05): "Own(ratio=0.05"}


@pytest.mark.parametrize("codec", REFUSED, ids=str)
def test_groups_that_cannot_be_recorded_are_computed_and_say_why(codec: gw.TopK, caplog: pytest.LogCaptureFixture):
    case = Case(codec, gw.Residual(), gw.AllGather(), 3)
    job = same(of(case, groups=1), steps(24), replayed=False)
    assert REFUSED[codec] in job.runtimes[0].stats().recorded
    assert ("is computed at every step: recording it failed" in caplog.text) is isinstance(codec, Asking)


class Watching(gw.Controller):
    """Notes which steps are still to be recorded."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        self.seen.append(seen.unrecorded)

    def decide(self, seen: gw.Observation) -> None:
        return None


@pytest.mark.parametrize(
    ("codec", "to_come"),
    # those in new places, two keys, and one that comes again; then they are replayed, and a controller hears it
    [(gw.TopK(0.05), 3 + 2 + 1), (gw.Interleaved(gw.TopK(0.1), gw.TopK(0.2), 3), 3 + 6 + 1), (Own(0.05), 0)],
    ids=str,
)
def test_a_controller_hears_which_steps_are_still_to_be_recorded(codec: gw.TopK, to_come: int):
    with taped(records=True):
        watching = [Watching() for _ in range(WORLD)]
        running = Fixed(of(Case(codec, gw.Residual(), gw.AllGather(), 3)), SLOTS, WORLD, controllers=watching)
        for number in range(14):
            if number < 4:
                running.begin()  # as long as DDP's buckets have not stayed
            running.step(draw(SLOTS, WORLD, number))
        running.close()
    assert [each.seen for each in watching] == [[True] * to_come + [False] * (14 - to_come)] * WORLD


def test_a_recording_that_made_a_buffer_is_made_again():
    GROWN[0] = 0
    same(of(Case(Growing(0.05, most=44), gw.Residual(), gw.AllGather(), 3), groups=1), steps(24))
    assert GROWN[0] > 44


def test_kernels_are_tried_and_compiled_before_the_first_step():
    """Not in a backward pass, while other ranks wait for this one's first payload."""
    with taped(records=False):
        running = Fixed(of(TOP_K), SLOTS, WORLD)
        assert {call.args for call in backend.on_gpu.call_args_list} == {(GPU,)}  # pyright: ignore
        running.close()


@pytest.mark.parametrize("off", ["0", ""])
def test_a_variable_switches_it_off(off: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADWIRE_GRAPHS", off)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    executor = Executor(torch.device("cpu"))
    assert executor.graphs() is None
    monkeypatch.setattr(executor, "_cuda", True)
    assert (executor.graphs() is None) is (off == "0")
    monkeypatch.setattr(executor, "_cuda", False)
    executor.close()


class Capture:
    """As torch's CUDAGraph: an end that CUDA refuses leaves the allocator and the random numbers as they were."""

    invalid = draws = False
    under_way: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.replay = lambda: None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert capture_error_mode == "thread_local"
        Capture.under_way.append(pool)
        self.pool, Capture.draws = pool, True

    def capture_end(self) -> None:
        if Capture.invalid:
            Capture.invalid = False
            raise RuntimeError("operation failed due to a previous error during capture")
        Capture.under_way.remove(self.pool)
        Capture.draws = False
        warnings.warn("The CUDA Graph is empty. This usually means that", UserWarning, stacklevel=2)


def end_allocation(device: int, pool: Any) -> None:
    Capture.under_way.remove(pool)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[CUDAGraphs]:
    for name, stub in {"graph_pool_handle": lambda: (0, 1), "CUDAGraph": Capture, "current_device": lambda: 0}.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_allocation, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: None, raising=False)
    monkeypatch.setattr(Capture, "under_way", [])
    with pretended_cuda():
        yield CUDAGraphs()


@pytest.mark.parametrize("invalid", [True, False])
@pytest.mark.parametrize("asks", [True, False])
def test_a_capture_that_fails_leaves_nothing_under_way(captures: CUDAGraphs, invalid: bool, asks: bool):
    """The turn waits for the GPU, or another thread does in the meantime."""

    def turn() -> int:
        Capture.invalid = invalid
        if asks:
            raise ValueError("not while a stream is captured")
        return 7

    if invalid or asks:
        with pytest.raises(ValueError if asks else RuntimeError, match="captured" if asks else "previous error"):
            captures.record(turn)
    else:
        assert captures.record(turn)[1] == 7
    assert not Capture.under_way
    assert not Capture.draws


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_a_turn_is_recorded(captures: CUDAGraphs, collects: bool):
    """A dropped graph or kernel that Python collects then, of anybody's, makes the capture invalid."""
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        assert captures.record(gc.isenabled)[1] is False
        assert gc.isenabled() is collects
        with pytest.raises(ZeroDivisionError):
            captures.record(lambda: 1 / 0)
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()


def test_nothing_is_collected_until_the_captures_of_all_jobs_have_ended():
    before, nothing = gc.isenabled(), NothingCollected()
    try:
        gc.enable()
        nothing.__enter__()
        nothing.__enter__()  # another job's thread
        nothing.__exit__()
        assert not gc.isenabled()
        nothing.__exit__()
        assert gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()


def test_a_turn_that_launches_nothing_is_no_reason_to_warn(captures: CUDAGraphs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CUDAGraphs().record(lambda: None)


def test_a_graph_of_the_users_own_records_no_step(monkeypatch: pytest.MonkeyPatch):
    """Its replays would call no hook. The job goes on without it."""
    with job(of(CASES[0]), SLOTS, WORLD) as running:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        for runtime in running.runtimes:
            with monkeypatch.context() as recording:
                recording.setattr(runtime._executor, "_cuda", True)
                with pytest.raises(RuntimeError, match="make_graphed_callables"):
                    runtime.open_step()
        assert torch.equal(*(means[0] for means in running.step(draw(SLOTS, WORLD, 0))))
