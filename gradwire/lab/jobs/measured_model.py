"""A model that reduces gradients as a configuration says, and counts what it sends."""

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.controllers import Decision
from gradwire.frontends import LocalSteps
from gradwire.frontends.hooks.sparse_gradients import sparse_in
from gradwire.lab.configuration import Configuration
from gradwire.lab.jobs.precision import MixedPrecision
from gradwire.lab.jobs.sharded import gather_into, mesh_of, sharded
from gradwire.lab.launch.rank_job import Peers
from gradwire.lab.rate import Rate
from gradwire.lab.results import Totals
from gradwire.lab.torch_hooks import Share
from gradwire.lab.workloads import Task
from gradwire.lab.workloads.to_device import to_device
from gradwire.plans import Plan
from gradwire.runtime.stats import Stats

MOST_NOTED = 1000
"""Sparse gradients whose rows wait to be counted."""


class MeasuredModel:
    """A model under DDP that reduces as a configuration says, and counts what it sends. With `shard` ranks to a
    replica, FSDP2 instead of DDP. With local steps neither, and `optimizer` is to take the steps. `autocast` is bf16 or
    fp16.

    Use as a context manager: leaving it ends the engine.
    """

    def __init__(
        self,
        model: nn.Module,
        configuration: Configuration,
        peers: Peers,
        seed: int,
        shard: int = 1,
        autocast: str | None = None,
    ) -> None:
        self.precision = MixedPrecision(autocast, peers.device)
        self._whole, self.peers = model.to(peers.device), peers
        self._sharded = shard > 1
        self.rate = Rate()
        self._seed = seed
        self._configuration, self.local = configuration, configuration.local is not None
        self._local_steps: LocalSteps | None = None
        self._mesh: DeviceMesh | None = None
        self.controller = configuration.fresh_controller(self.rate)
        # what plain DDP would send for this model: all-reduced gradients, and rows of sparse gradients
        trained, replicas = {n: p for n, p in model.named_parameters() if p.requires_grad}, peers.world // shard
        sparse = sparse_in(model, trained)
        gradient_bytes = sum(p.nbytes for name, p in trained.items() if name not in sparse)
        self._dense_bytes = 2 * (replicas - 1) * gradient_bytes // replicas // shard
        self._row_bytes = self._ddps_row_bytes = 0
        self._rows: list[tuple[Tensor, int, bool]] = []
        for name in sparse:
            trained[name].register_hook(self._note_rows)
        # without Gradwire all of it is sent, or nothing, or what torch's hook says
        self._share: Share = lambda steps: 0.0 if configuration.silent else 1.0
        # wrap the model: by FSDP2, not at all for local steps, else by DDP; then attach the configuration
        if self._sharded:
            self._mesh = mesh_of(shard, peers.device)
            self.wrapped = sharded(deepcopy(self._whole), self._mesh, configuration)
        else:
            self.wrapped = self._whole if self.local else _ddp(self._whole, configuration, peers)
        where: dict[str, Any] = {"mesh": self._mesh} if self._mesh else {"transport": peers.transport}
        self.handle = configuration.attach(self.wrapped, seed, self.controller, self.precision.scaler, **where)
        if configuration.hook:
            assert isinstance(self.wrapped, DistributedDataParallel)
            self._share = configuration.hook.register(self.wrapped, seed)
        self._interface_start = peers.interface_bytes()

    @property
    def module(self) -> nn.Module:
        """The model as it is now, whole; all ranks ask for it together."""
        return gather_into(self._whole, self.wrapped) if self._sharded else self._whole

    @property
    def every(self) -> int:
        return self._configuration.every

    @property
    def plan(self) -> Plan | None:
        """The plan in force, where Gradwire reduces."""
        return self.handle.plan if self.handle else None

    @property
    def choosing(self) -> bool:
        """Whether the controller has yet to settle on a plan; one rank alone has none."""
        return self.controller is not None and self.plan is not None and not self.controller.chosen

    def optimizer(self, inner: Optimizer) -> Optimizer:
        """The optimizer to step: `inner`, with local steps around it where the configuration says so."""
        self.rate.optimizer = inner
        transport = None if self._mesh else self.peers.transport
        self._local_steps = self._configuration.local_steps(inner, self.wrapped, transport, self._mesh, self._seed)
        if self._local_steps is None:
            return inner
        self.handle = self._local_steps.handle
        return self._local_steps

    def take_last_mean(self) -> None:
        """Takes over the mean of the last round, which may be on its way, in steps in which no replica moves. Fragments
        that are due meanwhile are sent once more."""
        if self._local_steps:
            for _ in range(self._configuration.delay):
                self._local_steps.skip()

    def shared(self) -> AbstractContextManager[None]:
        """Context in which parameters are those that all replicas share, after local steps those of the last round."""
        return self._local_steps.shared_parameters() if self._local_steps else nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.handle:
            self.handle.detach()

    def backward(self, task: Task, batch: Any) -> Tensor:
        """Forward and backward of one batch; returns its loss."""
        with self.precision.forward():
            loss = task.training_loss(self.wrapped, to_device(batch, self.peers.device))
        if self.controller:
            self.controller.report(loss.detach())
        self.precision.scaled(loss).backward()
        return loss.detach()

    def step(self, optimizer: Optimizer, clip: float | None = None) -> None:
        """Steps the optimizer with the gradients of the last backward pass, of the norm `clip` at most."""
        self.precision.step(optimizer, self.wrapped.parameters(), clip)

    def decisions(self) -> list[Decision]:
        """The controller's decisions since the last call."""
        known = self.controller.decisions if self.controller else []
        new = list(known)
        known.clear()
        return new

    def totals(self, steps: int) -> Totals:
        """This rank's bytes and seconds in `steps` steps."""
        self._count_rows()
        stats = self.handle.stats() if self.handle else None
        dense_bytes = steps * self._dense_bytes
        stats = stats or Stats(steps, round(self._share(steps) * dense_bytes), dense_bytes, 0, 0, 0, 0)
        # those of local steps counted only rounds
        dense_bytes = (dense_bytes if self.local else stats.dense_bytes) + self._row_bytes
        stats = replace(stats, wire_bytes=stats.wire_bytes + self._ddps_row_bytes, dense_bytes=dense_bytes)
        sent = self.peers.interface_bytes()
        start = self._interface_start
        return Totals.of(stats, None if sent is None or start is None else sent - start)

    def _note_rows(self, gradient: Tensor) -> None:
        """Notes the rows that a sparse gradient has; they are counted outside of timed steps."""
        row_bytes = gradient._values()[:1].nbytes
        by_ddp = not self._configuration.silent and (self.plan is None or self.plan.native)
        self._rows.append((gradient._indices()[0], row_bytes, by_ddp))
        # of a long training not all of them are kept
        if len(self._rows) == MOST_NOTED:
            self._count_rows()

    def _count_rows(self) -> None:
        """Counts what DDP sends of the noted gradients: each row once, with its index, to every other rank."""
        for indices, row_bytes, by_ddp in self._rows:
            nbytes = (self.peers.world - 1) * len(indices.unique()) * (indices.itemsize + row_bytes)
            self._row_bytes += nbytes
            self._ddps_row_bytes += nbytes * by_ddp
        self._rows.clear()

    def hash(self) -> str:
        """The parameters' SHA-256, the same on all ranks. Raises RuntimeError where it is not."""
        digest = sha256()
        with self.shared():
            for parameter in self.module.parameters():
                # the bytes of every parameter, in their order
                digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        # each rank's hash, compared on all
        mine = torch.tensor(list(digest.digest()), dtype=torch.uint8, device=self.peers.device)
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, mine)
        for rank, other in enumerate(everyones):
            if not torch.equal(other, everyones[0]):
                raise RuntimeError(f"the replicas differ: rank {rank} has other parameters than rank 0")
        return digest.hexdigest()


def _ddp(model: nn.Module, configuration: Configuration, peers: Peers) -> DistributedDataParallel:
    bucket_mb: Any = configuration.bucket_mb
    ddp = DistributedDataParallel(model, process_group=peers.group, bucket_cap_mb=bucket_mb)
    # BatchNorm's, before each step; torch 2.13 warns of the argument
    ddp.broadcast_buffers = not configuration.silent
    return ddp
