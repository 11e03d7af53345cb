"""The ranks that a job runs on, and the emulated network between them."""

import os
from dataclasses import dataclass

import torch

from gradwire.lab.names import check_device
from gradwire.lab.network.link import Link
from gradwire.lab.network.network import Network
from gradwire.launched import gpu_of_rank, is_launched, started


@dataclass(frozen=True)
class LabCluster:
    """`ranks` on loopback, or, with a link, on emulated hosts: each on one of its own, or the `shard` ranks that hold a
    replica together. On GPUs, ranks may share one; they then talk over gloo.

    Raises ValueError for GPUs that are not there, with a link for more ranks than a network has addresses and, where
    this process is a rank already, for a link or another number of ranks, and where it cannot find the others.
    """

    ranks: int
    """All of them."""
    link: Link | None = None
    device: str = "cpu"
    """cpu or cuda."""
    shard: int = 1
    """Ranks to a host."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.shard < 1:
            raise ValueError(f"{self.ranks} hosts cannot run anything: give 1 or more")
        if self.ranks % self.shard:
            raise ValueError(f"{self.ranks} ranks do not make replicas of {self.shard}: give a divisor to --shard")
        check_device(self.device)
        # what the network refuses, before it is built
        if self.link:
            # refuses too many hosts; nothing is built before it is entered
            Network(self.hosts, self.link)
        # ranks that were started beforehand are as they are
        if is_launched() and self.link:
            raise ValueError("a link can only be emulated for ranks that gradwire starts: start it by itself")
        if is_launched() and self.ranks != (world := started()[1]):
            raise ValueError(f"{world} ranks were started, not {self.ranks}")
        if self.device == "cuda":
            self._check_gpus(torch.cuda.device_count())

    def _check_gpus(self, gpus: int) -> None:
        if not gpus:
            raise ValueError("this machine has no GPU; leave out --device cuda")
        if is_launched():
            if (needed := gpu_of_rank(gpus) + 1) > gpus:
                raise ValueError(f"{needed} ranks were started on a machine of {gpus} GPUs; start one for each")
            # whose GPUs are one and the same is known when they meet
            return
        # FSDP2 shards over NCCL alone, which wants a GPU for each rank
        if self.shard > 1 and gpus < self.ranks:
            raise ValueError(f"{self.ranks} ranks share {gpus} GPUs, so each holds a whole model; leave out --shard")

    @property
    def hosts(self) -> int:
        """The number of emulated hosts; of real ones where torchrun or Slurm started the ranks."""
        if is_launched():
            if ranks_per_host := os.environ.get("LOCAL_WORLD_SIZE"):
                return self.ranks // int(ranks_per_host)
            if hosts := os.environ.get("SLURM_STEP_NUM_NODES"):
                return int(hosts)
        return self.ranks // self.shard

    def __str__(self) -> str:
        ranks = f"{self.ranks} ranks" if self.ranks > 1 else "1 rank"
        if self.link and self.shard > 1:
            return f"{ranks} on {self.hosts} emulated hosts, each with a {self.link} link"
        if self.link:
            return f"{ranks}, each on an emulated host with a {self.link} link"
        return (
            f"{ranks} that were started beforehand, on their own network" if is_launched() else f"{ranks} over loopback"
        )
