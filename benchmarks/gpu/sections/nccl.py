"""A process group of one rank over NCCL, made in seven ways, each in a process of its own: every collective with odd
sizes, the heartbeat's questions, jobs that record, close, abort, and another group after each."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import gradwire as gw
from benchmarks.gpu.device import Device
from benchmarks.gpu.jobs import SLOTS, job, plan
from benchmarks.gpu.rows import Rows
from gradwire.lab.doctor.collectives import COLLECTIVES, SIZES
from gradwire.torch_private.process_groups import backend_of, error_of
from gradwire.transports import ProcessGroup
from tests.support.cases import GATHER, REDUCE, RESIDUAL, Case
from tests.support.harness import draw

CASES = [
    Case(gw.TopK(0.05), RESIDUAL, GATHER, 3),
    Case(gw.Quantized(), RESIDUAL, gw.ScatterReduce(), 5),
    Case(gw.ACPSGD(2), RESIDUAL, REDUCE, 32),
]


class Way(NamedTuple):
    """A way to make the process group."""

    name: str
    backend: str = "nccl"
    with_device: bool = True
    env: dict[str, str] = {}  # noqa: RUF012

    def __str__(self) -> str:
        return self.name


WAYS = [
    Way("nccl, device_id="),
    Way("nccl", with_device=False),
    Way("cpu:gloo,cuda:nccl, device_id=", "cpu:gloo,cuda:nccl"),
    Way("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", with_device=False),
    Way("TORCH_DISTRIBUTED_DEBUG=DETAIL", env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    Way("TORCH_NCCL_BLOCKING_WAIT=1", env={"TORCH_NCCL_BLOCKING_WAIT": "1"}),
    Way("elastic", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}),
]


def run(rows: Rows, device: Device) -> None:
    """The section `nccl`."""
    for way in rows.each(WAYS[: device.size(len(WAYS), 1)]):
        rows.add("begun", what=str(way))
        os.environ.update(way.env)
        Trial(rows, device, way).run()


class Trial:
    """One way; what fails is noted, and the rest goes on."""

    def __init__(self, rows: Rows, device: Device, way: Way) -> None:
        self._rows, self._device, self._way = rows, device, way

    def run(self) -> None:
        self._try("init_process_group", self._initialise)
        first = self._try("make, check and open a group", self._group)
        if first:
            self._try("every collective", lambda: self._collectives(first))
            self._try("questions of the monitor", lambda: self._questions(first))
            for case in CASES[: self._device.size(len(CASES), 1)]:
                self._try(f"job: {case.compressor}", lambda case=case: self._job(case))
            self._try("close", first.close)
        if second := self._try("a second group", self._group):
            self._try("its collectives", lambda: self._collectives(second))
            self._try("abort", lambda: self._abort(second))
        if self._way.name == "elastic":
            self._try("attach(elastic=True)", self._attach)
        if third := self._try("a group after the abort", self._group):
            self._try("its collectives after the abort", lambda: self._collectives(third))
            self._try("close it", third.close)
        self._try("destroy_process_group", dist.destroy_process_group)

    def _try(self, what: str, call: Callable[[], Any]) -> Any:
        """Makes a call and adds a row for it. Returns the call's result, or None where it failed."""
        with self._rows.attempt(f"{self._way}: {what}", most_s=40):
            began = time.perf_counter()
            found = call()
            said = found if isinstance(found, str) else ""
            seconds = time.perf_counter() - began
            self._rows.add("one rank", what=f"{self._way}: {what}", ok=True, s=seconds, found=said)
            return found
        return None

    def _initialise(self) -> str:
        dist.set_debug_level_from_env()
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
        backend = self._way.backend if self._device.is_gpu else "gloo"
        bound = {"device_id": self._device.device} if self._way.with_device and self._device.is_gpu else {}
        dist.init_process_group(backend, store=store, rank=0, world_size=1, **bound)
        return str(dist.get_backend())

    def _group(self) -> ProcessGroup:
        transport = gw.ProcessGroup.own()
        transport.check(self._device.device)
        transport.open(self._device.device)
        return transport

    def _collectives(self, transport: ProcessGroup) -> str:
        count = 0
        for name, make in COLLECTIVES.items():
            for size in SIZES if name != "send and receive" else ():
                op, expected = make(transport, size, self._device.device)
                transport.run(op)
                self._device.synchronize()
                assert torch.equal(op.receive.whole, expected), f"{name} of {size} elements is wrong"
                count += 1
        return f"{count} right"

    def _questions(self, transport: ProcessGroup) -> str:
        group = dist.group.WORLD
        assert group is not None
        assert error_of(group) is None
        for waits in (False, True):
            assert transport.lost(waits) is None
        return f"backend {backend_of(group, self._device.device)}, polled {transport.needs_polling}"

    def _job(self, case: Case) -> str:
        """Twelve steps, of which the last ones are replayed, on a group that the job closes."""
        with job(self._device, plan(case), records=True, transports=[self._group()]) as running:
            for number in range(12):
                means = running.step(draw(SLOTS, 1, number))
            assert all(mean.isfinite().all() for mean in means[0])
            return running.runtimes[0].stats().recorded

    def _abort(self, transport: ProcessGroup) -> str:
        transport.abort("for a trial")
        assert transport.failure() == "for a trial"
        try:
            transport.run(COLLECTIVES["all-reduce"](transport, 1, self._device.device)[0])
        except RuntimeError as error:
            return str(error)
        raise AssertionError("a collective began after abort()")

    def _attach(self) -> str:
        """A DDP of this rank alone, whose ranks may be lost."""
        model = torch.nn.Linear(300, 200).to(self._device.device)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        handle = gw.attach(ddp, "topk:0.01", elastic=True)
        for _ in range(12):
            ddp.zero_grad()
            ddp(torch.ones(8, 300, device=self._device.device)).square().mean().backward()
        self._device.synchronize()
        said = handle.stats().recorded
        handle.detach()
        return said
