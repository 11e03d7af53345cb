"""Whole multi-rank jobs in one process: engines over `gw.Threads`, driven step by step from one thread."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.compressors import Compressor, State, Workspace
from gradwire.controllers import Controller
from gradwire.engine import Engine
from gradwire.layout import Layout, Slot

WAIT_S = 20
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
    """What `body(rank)` returned or raised on each rank's thread; nobody may take longer than WAIT_S."""
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
    """The engines of all ranks."""

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
        self.engines: list[Engine] = raising(together(world, lambda rank: self._engine(plan, rank, options)))

    def _engine(self, plan: gw.Plan, rank: int, options: dict[str, Any]) -> Engine:
        controller = self.controllers[rank]
        return Engine(plan, self.slots, self.transports[rank], CPU, controller=controller, **options)

    def step(self, grads: Grads) -> list[list[Tensor]]:
        """Copies of the means, by rank and slot."""
        for engine, own in zip(self.engines, grads, strict=True):
            for slot, grad in enumerate(own):
                engine.give(slot, grad)
        for engine in self.engines:
            with engine._progress:  # a thread per rank and step would cost more
                settled = engine._progress.wait_for(lambda e=engine: e._error or e._settled == e._epoch, WAIT_S)
            assert settled, "a rank hangs"
            engine.wait()
        return [[mean.clone() for mean in engine.means()] for engine in self.engines]

    def install(self, plan: gw.Plan) -> None:
        raising(together(self.world, lambda rank: self.engines[rank].install(plan)))

    def state(self, name: str) -> list[list[Tensor]]:
        """Copies of every slot's tensor of this name, by rank and slot; zeros where there is none."""
        return [
            [exported[slot.name].get(name, torch.zeros(slot.shape)).clone() for slot in self.slots]
            for exported in (engine.export() for engine in self.engines)
        ]

    def states(self) -> list[dict[str, Tensor]]:
        """A copy of all that each rank would save."""
        return [gw.checkpoint.pack(engine.export(), engine.steps) for engine in self.engines]

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


@contextmanager
def job(plan: gw.Plan, slots: Sequence[Slot], world: int, **options: Any):
    running = Job(plan, slots, world, **options)
    try:
        yield running
    finally:
        running.close()


def hosts(count: int, local: int) -> list[gw.Hierarchical]:
    """Transports of `count` hosts with `local` ranks each, by global rank."""
    inside = [gw.Threads.group(local) for _ in range(count)]
    between = [gw.Threads.group(count) for _ in range(local)]
    return [gw.Hierarchical(inside[host][rank], between[rank][host]) for host in range(count) for rank in range(local)]


def total(by_rank: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The sum over the ranks, slot by slot, in float64."""
    return [torch.stack([t.double() for t in tensors]).sum(0) for tensors in zip(*by_rank, strict=True)]


def alone(n: int, compressor: Compressor, **options: Any) -> State:
    """The state of one rank for a single slot of n elements, without an engine."""
    layout = Layout((Slot.of("x", torch.empty(n)),))
    state = State(layout, 0, 1, Workspace(CPU), Workspace(CPU), **options)
    for name in compressor.flat_state:
        state.flat[name] = torch.zeros(n)
    generator = torch.Generator().manual_seed(0)
    state.slots = [dict(compressor.init_slot(*slot.matrix, generator)) for slot in layout.slots]
    return state
