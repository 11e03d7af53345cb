"""Whole multi-rank jobs in one process: engines over `gw.Threads`, driven step by step from one thread."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import log2
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.collective import HOST, REPLICA
from gradwire.compressors import Codec, Compressor, GroupContext, context_for
from gradwire.controllers import Controller
from gradwire.ops.gradients import Gradients
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.runtime.exchanges import plan_exchanges
from gradwire.runtime.exchanges.exchange import GroupExchange
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.failures import failure_verdict
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.state.store import Exported
from gradwire.slots import Layout, Slot
from gradwire.tuner import profiler_for

WAIT_S = 50
failure_verdict.OTHERS_S, failure_verdict.POLL_S = 0.05, 0.001  # threads have no hosts that are far away
CPU = torch.device("cpu")
torch.set_num_threads(1)

Grads = Sequence[Sequence[Tensor | None]]
"""By rank and slot."""

SMALL = {
    "stem.weight": torch.empty(5, 3, 3, 3).to(memory_format=torch.channels_last),
    "stem.bias": torch.empty(7),
    "scale": torch.empty(1),
    "body.weight": torch.empty(31, 17),
    "scalar": torch.empty(()),
    "turned.weight": torch.empty(12, 9).T,
    "head.weight": torch.empty(10, 33),
}
"""Odd sizes, a scalar, one element, channels-last and transposed."""

WIDE = {
    "wide.weight": torch.empty(301, 257),
    "wide.bias": torch.empty(301),
    "last.weight": torch.empty(3, 301),
}
"""More than one block of 65,536 elements, and more than one of any scale."""


def slots_of(parameters: dict[str, Tensor]) -> list[Slot]:
    return [Slot.of(name, parameter) for name, parameter in parameters.items()]


def plan_of(
    slots: Sequence[Slot], compressor: Compressor, memory: Any, communicator: Any, *, groups: int = 2
) -> gw.Plan:
    """Every `groups`-th slot in the same group, so that groups are not what lies side by side."""
    names = [slot.name for slot in slots]
    parts = [tuple(names[first::groups]) for first in range(min(groups, len(names)))]
    return gw.Plan(tuple(gw.Group(part, compressor, memory, communicator) for part in parts))


def draw(slots: Sequence[Slot], world: int, seed: int, scale: float = 1.0) -> list[list[Tensor]]:
    """Gradients by rank and slot, each in its parameter's memory order."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [slot.view(torch.randn(slot.numel, generator=generator).mul_(scale)) for slot in slots] for _ in range(world)
    ]


def together(world: int, body: Callable[[int], Any]) -> list[Any]:
    """Runs `body(rank)` on a thread for each rank, for at most WAIT_S; returns each result or exception."""
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), f"a rank hangs; the others: {results}"
    return results


def raising(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class Clock(threading.local):
    """Each rank's engine has a thread, so each has its time; all of them pass `step_s` per step."""

    step_s = 1.0
    now = 0.0

    def __call__(self) -> float:
        self.now += Clock.step_s
        return self.now

    @classmethod
    def wound(cls, monkeypatch: pytest.MonkeyPatch, module: Any) -> Iterator[type["Clock"]]:
        """For a fixture: `module` reads this clock while the test runs."""
        monkeypatch.setattr(module, "perf_counter", cls())
        yield cls
        cls.step_s = 1.0


class Job:
    """The runtimes of all ranks. What a test gives as gradients stays as it is: means replace copies of them."""

    device = CPU

    def __init__(
        self,
        plan: gw.Plan,
        slots: Sequence[Slot],
        world: int,
        *,
        transports: Sequence[Any] = (),
        controllers: Sequence[Controller] = (),
        **options: Any,
    ) -> None:
        self.slots, self.world = slots, world
        self.transports = list(transports) or gw.Threads.group(world)
        self.controllers = list(controllers) or [None] * world
        options.setdefault("plan_for", lambda slots: plan.only(_names(slots)))
        self.runtimes: list[Runtime] = raising(together(world, lambda rank: self._runtime(plan, rank, options)))

    def _runtime(self, plan: gw.Plan, rank: int, options: dict[str, Any]) -> Runtime:
        mesh = gw.Mesh.of(self.transports[rank])
        profiler = profiler_for(self.slots, mesh, self.device)
        settings = JobOptions(controller=self.controllers[rank], profiler=profiler, **options)
        return Runtime(lambda: plan, self.slots, mesh, self.device, settings)

    def step(self, grads: Grads) -> list[list[Tensor]]:
        """The means, by rank and slot."""
        for runtime in self.runtimes:
            runtime.open_step()
        means = [hand_over(runtime, own) for runtime, own in zip(self.runtimes, grads, strict=True)]
        self.finish()
        return means

    def finish(self) -> None:
        """Waits for all ranks; a thread per rank and step would cost more."""
        reached = []
        for runtime in self.runtimes:
            reached.append(threading.Event())
            runtime._executor.post(reached[-1].set)
        for each in reached:
            assert each.wait(WAIT_S), "a rank hangs"
        for runtime in self.runtimes:
            runtime.raise_error()

    def skip(self) -> None:
        """Takes back the last step."""
        raising(together(self.world, lambda rank: self.runtimes[rank].skip()))

    def install(self, plan: gw.Plan) -> None:
        raising(together(self.world, lambda rank: self.runtimes[rank].install(plan)))

    def follow(self, trained: Sequence[str]) -> None:
        raising(together(self.world, lambda rank: self.runtimes[rank].follow(trained)))

    def load(self, states: Sequence[dict[str, Tensor]]) -> None:
        raising(together(self.world, lambda rank: self.runtimes[rank].load_state_dict(states[rank])))

    def state(self, name: str) -> list[list[Tensor]]:
        """Copies of every slot's tensor of this name, by rank and slot; zeros where there is none. Not by way of
        checkpoints, whose checksums and JSON take longer than most steps."""
        return [[_copy(kept, slot, name) for slot in self.slots] for kept in map(_exported, self.runtimes)]

    def states(self) -> list[dict[str, Tensor]]:
        """A copy of all that each rank would save."""
        return [runtime.state_dict() for runtime in self.runtimes]

    def close(self) -> None:
        for runtime in self.runtimes:
            runtime.close()


def impatient(running: Job) -> None:
    """Has the ranks wait little at the meetings to come; at their first one they have waited as long as users' do."""
    for runtime in running.runtimes:
        runtime._agreement._meeting._patience_s = 0.2


def _names(slots: Sequence[Slot]) -> set[str]:
    return {slot.name for slot in slots}


def _exported(runtime: Runtime) -> Exported:
    steps = runtime._states._steps
    with steps.changing:
        steps.settle()
        return steps.store.export()


def _copy(kept: Exported, slot: Slot, name: str) -> Tensor:
    return kept[slot.name][name].clone() if name in kept[slot.name] else torch.zeros(slot.shape)


def hand_over(runtime: Runtime, grads: Sequence[Tensor | None], order: Sequence[int] | None = None) -> list[Tensor]:
    """Submits copies of a rank's gradients, in this order, which will become the means."""
    means = [
        slot.view(torch.zeros(slot.numel, dtype=slot.dtype)) if grad is None else grad.clone()
        for slot, grad in zip(runtime.slots, grads, strict=True)
    ]
    for slot in range(len(grads)) if order is None else order:
        if grads[slot] is None:
            runtime.submit_absent(slot, means[slot])
        else:
            runtime.became_ready(slot)
            runtime.submit(slot, means[slot])
    return means


@contextmanager
def job(plan: gw.Plan, slots: Sequence[Slot], world: int, **options: Any):
    running = Job(plan, slots, world, **options)
    try:
        yield running
    finally:
        running.close()


def hosts(count: int, local: int, axis: str = HOST) -> list[gw.Mesh]:
    """Meshes of `count` hosts with `local` ranks each, by global rank; with the axis SHARD, of replicas with shards."""
    everyone = gw.Threads.group(count * local)
    inside = [gw.Threads.group(local) for _ in range(count)]
    between = [gw.Threads.group(count) for _ in range(local)]
    return [
        gw.Mesh({REPLICA: between[rank][host], axis: inside[host][rank]}, everyone[0].store)
        for host in range(count)
        for rank in range(local)
    ]


def exchange_of(group: gw.Group, slots: Sequence[Slot], transport: gw.Transport) -> GroupExchange:
    """One group of one rank, without a job."""
    return plan_exchanges.exchange_of(group, slots, gw.Mesh.of(transport), CPU)


def run(exchange: GroupExchange, grads: Sequence[Tensor], transport: gw.Transport, step: int = 0) -> None:
    """One step of it; the means replace the gradients."""
    for op in exchange.run(GroupInput(Gradients(exchange.stored.split, grads)), step):
        transport.run(op)
    exchange.commit()


def total(by_rank: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The sum over the ranks, slot by slot, in float64."""
    return [torch.stack([t.double() for t in tensors]).sum(0) for tensors in zip(*by_rank, strict=True)]


def alone(n: int, compressor: Compressor, **options: Any) -> GroupContext:
    """The context of one rank for a single slot of n elements, without a job."""
    context = context_for(Layout((Slot.of("x", torch.empty(n)),)), compressor, CPU)
    for name, value in options.items():
        setattr(context, name, value)
    return context


def round_trip(codec: Codec, x: Tensor, context: GroupContext | None = None) -> Tensor:
    """What is decoded of an encoded vector, which stays as it is; in a group of one slot, or in that of the context."""
    context = context or alone(len(x), codec)
    payload, out = torch.zeros(codec.group_bytes(context.layout, context.step), dtype=torch.uint8), torch.empty(len(x))
    codec.encode(LazySum.of(x.clone()), payload[None], context.whole)
    codec.decode(payload[None, None], Mean.of(out), context.whole)
    return out


def place_bytes(gap: float) -> float:
    """What an index takes where one element of `gap` is sent."""
    low_bits = int(log2(gap))
    return (1 + low_bits + gap / 2**low_bits) / 8
