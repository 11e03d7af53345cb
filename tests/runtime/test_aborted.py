"""A collective that is aborted on a GPU raises nothing: its stream goes on, with half of a result. Wherever in a step
that happens, the garbage is not taken for a mean, and no rank counts the step alone.

The worker's thread plays the stream: an abort happens while it waits, and what the host had queued behind that runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, combinations

import pytest
import torch

import gradwire as gw
from gradwire.runtime.failures.job_errors import PeerFailed
from gradwire.runtime.worker.events import elapsed_s
from gradwire.runtime.worker.executor import Executor
from tests.support import harness
from tests.support.harness import CPU, SMALL, draw, plan_of, raising, slots_of, together
from tests.support.states import kept
from tests.support.waiting import wait_until

WORLD, WHOLE = 2, 2
SLOTS = slots_of(SMALL)
CASES = [
    (gw.FP32(), gw.NoMemory(), gw.AllReduce()), (gw.TopK(0.1), gw.Residual(), gw.AllGather()),
    (gw.PowerSGD(2), gw.Residual(), gw.AllReduce()), (gw.Quantized(4), gw.Residual(), gw.ScatterReduce()),
    (gw.TopK(0.1), gw.Residual(), gw.GlobalTopK()),
]  # fmt: skip
GRADS = [draw(SLOTS, WORLD, step) for step in range(WHOLE + 1)]


class Aborted:
    """A collective that is aborted when half of its result is there; the rest of the buffer is as it was."""

    def __init__(self, op, executor) -> None:
        self.received, self.executor, self.pending = op.receive.whole, executor, None
        self.before = self.received.clone()

    def wait(self) -> None:
        if self.pending:
            self.pending.wait()
        self.executor.abort()
        half = len(self.received) // 2
        self.received[half:] = self.before[half:]


class LikeNCCL(gw.Threads):
    """Threads of which some lose collective number `breaks`, and all of them all that follow it."""

    executor: Executor
    breaks, deaf = 1 << 30, False

    def start(self, op):
        number, aborted = len(self.started), Aborted(op, self.executor)
        if number > self.breaks:
            self.started.append(op)
            return aborted
        pending = aborted.pending = super().start(op)
        return aborted if number == self.breaks and self.deaf else pending


def equal(one, other) -> bool:
    return all(torch.equal(mine, its) for mine, its in zip(one, other, strict=True))


def playing(plan, **options):
    """A job in which WHOLE steps were taken."""
    transports = LikeNCCL.group(WORLD)
    running = harness.Job(plan, SLOTS, WORLD, transports=transports, **options)
    for transport, runtime in zip(transports, running.runtimes, strict=True):
        transport.executor = runtime._executor
    for grads in GRADS[:WHOLE]:
        running.step(grads)
    return running


def moments(plan, **options):
    """The means and the states of each number of steps, and each moment of the last step: a collective, and the ranks
    that lose it."""
    running = playing(plan, **options)
    states, begun = [running.states()], len(running.transports[0].started)
    means = running.step(GRADS[WHOLE])
    states.append(running.states())
    ended = len(running.transports[0].started)
    running.close()
    deaf = list(chain.from_iterable(combinations(range(WORLD), n) for n in range(1, WORLD + 1)))
    return means, states, [(breaks, ranks) for breaks in range(begun, ended) for ranks in deaf]


def lose(running, breaks, deaf):
    for rank, transport in enumerate(running.transports):
        transport.breaks, transport.deaf = breaks, rank in deaf


def twice(running):
    """A rank that has counted a step finds out in the next."""
    running.step(GRADS[WHOLE])
    running.step(GRADS[WHOLE])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[2]}")
def test_means_of_an_aborted_step_are_whole_or_nan_and_the_state_is_that_of_whole_steps(case, monkeypatch):
    monkeypatch.setattr(Executor, "is_immediate", False)
    plan = plan_of(SLOTS, *case)
    whole, states, lost = moments(plan)
    for breaks, deaf in lost:
        running = playing(plan)
        lose(running, breaks, deaf)
        means = running.step(GRADS[WHOLE])  # and the optimizer's step is queued
        for rank in range(WORLD):
            counts = equal(means[rank], whole[rank])
            assert counts or all(mean.isnan().any() for mean in means[rank]), (breaks, deaf, rank)
            runtime = running.runtimes[rank]
            runtime.fail(PeerFailed("reducing ended", "a rank was lost"))
            torch.testing.assert_close(kept(runtime.state_dict()), kept(states[counts][rank]), rtol=0, atol=0)
        running.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[2]}")
def test_an_aborted_step_of_an_elastic_job_counts_on_all_or_none(case, monkeypatch):
    monkeypatch.setattr(Executor, "is_immediate", False)
    plan = plan_of(SLOTS, *case)
    _, states, lost = moments(plan, elastic=True)
    for breaks, deaf in lost:
        running = playing(plan, elastic=True)
        lose(running, breaks, deaf)
        with pytest.raises(RuntimeError):
            twice(running)
        left = raising(together(WORLD, lambda rank, running=running: running.runtimes[rank].leave()))
        newest = max(int(own[0]["step"]) for own in left)
        for rank, own in enumerate(left):
            counted = {int(state["step"]): state for state in own}[newest]
            torch.testing.assert_close(kept(counted), kept(states[newest - WHOLE][rank]), rtol=0, atol=0)


class OneGPU:
    """CUDA, of which each thread has a device; `asked` are those of the threads that ask an event something."""

    def __init__(self) -> None:
        self.current, self.asked = 0, list[int]()

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def current_stream(self, device: torch.device) -> "OneGPU":
        return self

    def record_event(self) -> "OneGPU":
        return self

    def Event(self, enable_timing: bool) -> "OneGPU":
        return self

    def record(self, stream: "OneGPU") -> None:
        pass

    def query(self) -> bool:
        self.asked.append(self.current)
        return True

    def elapsed_time(self, end: "OneGPU") -> float:
        self.asked.append(self.current)
        return 2e3

    def synchronize(self) -> None:
        self.asked.append(self.current)


def test_whichever_thread_asks_a_gpu_something_it_makes_no_context_on_another_one(monkeypatch):
    executor, cuda = Executor(CPU), OneGPU()
    monkeypatch.setattr(executor, "_cuda", True)
    monkeypatch.setattr(executor, "device", torch.device("cuda:3"))
    for name in ("device", "current_stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    value, start, end = executor.on_host(torch.ones(1)), executor.record_event(), executor.record_event()
    assert (value(), elapsed_s(start, end), end.query()) == (torch.ones(1), 2.0, True)
    assert {*cuda.asked} == {3}
    assert len(cuda.asked) == 4
    executor.close()


def test_a_verdict_that_could_not_be_read_is_read_by_who_asks_next(monkeypatch):
    monkeypatch.setattr(Executor, "is_immediate", False)
    with harness.job(plan_of(SLOTS, *CASES[1]), SLOTS, WORLD) as running:
        running.step(GRADS[0])
        steps = running.runtimes[0]._steps
        verdict = steps._verdict
        awaited, fails = verdict._awaited, iter([True])

        def read() -> torch.Tensor:
            if next(fails, False):
                raise RuntimeError("CUDA error")
            return awaited()

        verdict._awaited = read
        with pytest.raises(RuntimeError, match="CUDA error"):
            steps.settle()
        steps.settle()
        assert steps.counted == 1


def test_a_backward_pass_that_raised_is_the_reason_when_a_gpu_reads_the_verdict_later(monkeypatch):
    monkeypatch.setattr(Executor, "is_immediate", False)
    with harness.job(plan_of(SLOTS, *CASES[1]), SLOTS, WORLD) as running:

        def ends(rank: int) -> None:
            runtime = running.runtimes[rank]
            runtime.open_step()
            if rank:  # the other one's pass raised
                harness.hand_over(runtime, GRADS[0][rank])
                runtime.finish()
            else:
                runtime.give_up()

        raising(together(WORLD, ends))
        running.step(GRADS[0])
        for runtime in running.runtimes:
            assert "since a backward pass raised on rank 0" in runtime.status()


def test_nobody_waits_for_a_worker_that_has_ended():
    executor = Executor(CPU)
    before = executor.fence()
    executor.flush(before)
    assert executor.call(int) == 0
    assert not executor._awaited, "nor does it keep what each step has waited for"
    assert executor.close()
    for wait in (executor.flush, lambda: executor.call(int)):
        (error,) = together(1, lambda rank, wait=wait: wait())
        assert "the job has ended" in str(error)
    executor.flush(before)


def test_threads_that_wait_for_a_worker_that_is_stuck_hear_of_the_error():
    executor, goes_on, lost = Executor(CPU), threading.Event(), PeerFailed("reducing ended", "a rank was lost")
    # what the worker calls itself it does at once
    assert together(1, lambda rank: executor.call(lambda: executor.call(int))) == [0]

    def fails() -> None:
        assert wait_until(lambda: bool(executor._awaited))
        executor.fail_waiters(lost)

    threading.Thread(target=fails).start()
    try:
        assert together(1, lambda rank: executor.call(goes_on.wait)) == [lost]
    finally:
        goes_on.set()
        executor.close()
