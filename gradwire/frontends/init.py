"""Joining torch.distributed by one call."""

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

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
    if launched:
        dist.init_process_group()
    else:
        dist.init_process_group(store=HashStore(), rank=0, world_size=1)
