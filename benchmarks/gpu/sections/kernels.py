"""Kernels beside a copy of the bytes that they have to read and write; then each compressor's step on one group.

One group has 23 matrices of 1024 x 1024 and as many vectors, 8 ranks, whose payloads are this rank's own. `device` is
the GPU's time for all of a step's work, behind a queue that is full; `host` the time that Python takes to launch it.
"""

import time
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch

import gradwire as gw
from benchmarks.gpu.configurations import CONFIGURATIONS, OTHERS
from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import Rows
from benchmarks.kernels.passes import Pass, passes
from gradwire.notation import read
from gradwire.ops.backend import REFERENCE, Backend, backend_for
from gradwire.plans import Group, uniform
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.plan_exchanges import exchange_of
from gradwire.runtime.exchanges.recordings import GroupRecordings
from gradwire.runtime.worker.graphs import CUDAGraphs
from gradwire.slots import Slot

WORLD = 8
HELD_MS = 12.0
"""So long, at least, the GPU is kept busy while the host launches a step."""
TRIES = 3
"""Recordings; the first ones may find that buffers were made, and be thrown away."""


def run(rows: Rows, device: Device) -> None:
    """The section `kernels`."""
    with torch.no_grad():
        for name in rows.each(["kernels"]):
            with rows.attempt(name, most_s=120):
                for cells in kernel_rows(rows, device):
                    rows.add("kernels", **cells)
        device.free()
        for name in rows.each([*CONFIGURATIONS, *OTHERS][: device.size(99, 2)], needs_s=2):
            with rows.attempt(name):
                rows.add("one group", what=name, **OneGroup(device, (CONFIGURATIONS | OTHERS)[name]).measured())
            device.free()


def kernel_rows(rows: Rows, device: Device) -> Any:
    """For each kernel: its time, a copy's of the same bytes, how much of the copy's speed it has, its launches, and how
    many elements are not the reference's."""
    n = device.size(23 * (1 << 20) + 23 * 1024, 100_000)
    ops = backend_for(torch.empty(1, device=device.device))
    for each in passes(n, device.device, ops):
        if rows.left_s < 20 and not device.tiny:
            return
        call = partial(each.run, ops)
        ms, copy_ms, launched = device.ms(call), device.copy_ms(each.nbytes), device.kernels(call)
        yield {
            "what": each.name, "ms": ms, "copy ms": copy_ms, "of a copy": copy_ms / ms, "MB": each.nbytes / 1e6,
            "launches": len(launched), "most": most_of(launched), "differ": differing(each, ops),
        }  # fmt: skip


def differing(each: Pass, ops: Backend) -> int:
    """How many elements differ from the reference's on the same device: but for equal magnitudes and for roundings of
    noise, none. The reference has a slice's indices in any order there."""
    found = [each.run(kernels).clone() for kernels in (ops, REFERENCE)]
    ours, right = [one.sort(-1).values if one.dtype == torch.int64 else one for one in found]
    return int(((ours - right).abs() > 1e-5).sum())


def most_of(launched: list[tuple[str, float]], count: int = 3) -> list[str]:
    """The kernels that take most of the time, with their microseconds."""
    totals: dict[str, float] = {}
    for name, us in launched:
        short = name.split("<")[0].replace("void ", "").replace("at::native::", "")[:24]
        totals[short] = totals.get(short, 0.0) + us
    return [f"{name} {us:.0f}" for name, us in sorted(totals.items(), key=lambda each: -each[1])[:count]]


class OneGroup:
    """A group alone, without a runtime: its exchange and its recordings, on a stream of its own."""

    def __init__(self, device: Device, text: str) -> None:
        self.device, self._transport = device, gw.SizeRecorder(WORLD)
        parts, _ = read(text)
        slots = _slots(device.size(23, 1), device.size(1024, 64))
        chosen = uniform(slots, parts.compressor, parts.memory, parts.communicator, lambda slot: False).groups[0]
        group = Group(tuple(slot.name for slot in slots), chosen.compressor, chosen.memory, chosen.communicator)
        self._exchange = exchange_of(group, slots, gw.Mesh.of(self._transport), device.device)
        stored = self._exchange.stored
        self._stream = torch.cuda.stream(torch.cuda.Stream()) if device.is_gpu else nullcontext()
        self._steps = 0
        # gradients that lie in one bucket
        self._source = 1e-3 * torch.randn(stored.layout.numel, device=device.device)
        self._flat = torch.empty_like(self._source)
        stored.gradients(stored.layout.views(self._flat), fixed=True)
        self._recordings = GroupRecordings(self._exchange, CUDAGraphs, lambda: False) if device.is_gpu else None

    def measured(self) -> dict[str, Any]:
        """Times, launches and bytes of a step, computed and recorded."""
        self.device.synchronize()
        with self._stream:
            for _ in range(self.device.size(13, 2)):
                self._step()
            launched = self.device.kernels(self._step)
            busy_ms = sum(us for _, us in launched) / 1e3
            cells = {"device ms": 0.0, "recorded ms": 0.0, "host ms": 0.0, "recorded host ms": 0.0, "busy ms": busy_ms}
            cells["device ms"], cells["host ms"] = self._times()
            status = "no GPU"
            if self._recordings:
                status = self._record(self._recordings)
                cells["recorded ms"], cells["recorded host ms"] = self._times()
        return cells | {
            "launches": len(launched),
            "wire MB": self._bytes / 1e6,
            "not recorded": status,
            "most": most_of(launched),
        }

    def _record(self, recordings: GroupRecordings) -> str:
        """Records the keys of all steps so far; returns why it is not recorded."""
        for _ in range(TRIES):
            recordings.record()
            for _ in range(13):
                self._step()
            if not recordings.status:
                break
        return recordings.status

    def _times(self) -> tuple[float, float]:
        """Median milliseconds of a step on the device, and on the host."""
        there, here = list[float](), [0.0]
        for _ in range(self.device.size(8, 1)):
            self._flat.copy_(self._source).mul_(1 + 0.01 * (self._steps % 7))
            self.device.hold(max(HELD_MS, 1.5 * here[-1]))
            start, began = self.device.mark(), time.perf_counter()
            self._launch()
            here.append(1e3 * (time.perf_counter() - began))
            end = self.device.mark()
            self.device.synchronize()
            there.append(self.device.between(start, end))
        return median(there), median(here[1:])

    def _step(self) -> None:
        self._flat.copy_(self._source)
        self._launch()

    def _launch(self) -> None:
        """One step on the gradients that are there."""
        given = GroupInput(self._exchange.stored.fixed)  # pyright: ignore
        source = self._recordings or self._exchange
        self._bytes = 0
        for op in source.run(given, self._steps):
            if op is not None:
                self._bytes += op.wire_bytes(WORLD)
                self._transport.run(op)
        self._transport.ops.clear()
        self._exchange.commit()
        self._steps += 1


def _slots(layers: int, width: int) -> list[Slot]:
    named = {f"{i}.weight": torch.empty(width, width, device="meta") for i in range(layers)}
    named |= {f"{i}.bias": torch.empty(width, device="meta") for i in range(layers)}
    return [Slot.of(name, tensor) for name, tensor in named.items()]
