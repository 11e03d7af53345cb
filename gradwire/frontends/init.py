"""Joining torch.distributed by one call."""

import os

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]


def init() -> None:
    """Joins the other ranks of torchrun's environment, with this rank's GPU as the current device where there are GPUs.
    A process that torchrun did not start is the only rank; one that has joined already stays as it is."""
    if dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:
        dist.init_process_group()
    else:
        dist.init_process_group(store=HashStore(), rank=0, world_size=1)
