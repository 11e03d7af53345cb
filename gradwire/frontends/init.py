"""Joining torch.distributed by one call."""

import os

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from gradwire.launched import gpu_of_rank, is_launched


def init() -> None:
    """Joins the other ranks that torchrun, or a step of SLURM's `srun`, started, with this rank's GPU as the current
    device where there are several. A process that neither started is the only rank; one that has joined already stays
    as it is."""
    if dist.is_initialized():
        return
    launched = is_launched()
    # one alone is the current device anyway
    if (gpus := torch.cuda.device_count()) > 1:
        torch.cuda.set_device(gpu_of_rank(gpus))
    if not launched:
        dist.init_process_group(store=HashStore(), rank=0, world_size=1)
    elif os.environ.get("GROUP_WORLD_SIZE") == "1":
        # one torchrun may keep its store when it restarts ranks, and they would find the old ranks' addresses, so each
        # attempt has its own keys; several torchruns count their restarts apart
        store, rank, world = next(rendezvous("env://"))
        attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group(store=attempt, rank=rank, world_size=world)
    else:
        dist.init_process_group()
