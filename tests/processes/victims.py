"""A rank that trains until another one is lost, and says what it was told: `python -m tests.processes.victims NAME`."""

import os
import sys
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

TIMEOUT_S = 15
JOBS = {
    "topk": partial(gw.attach, compressor=gw.TopK(0.1)),
    "fp16": partial(gw.attach, compressor=gw.FP16()),
    "gravac": partial(gw.attach, compressor=gw.TopK(0.1), controller=gw.GraVAC(2, 64, window=5)),
}


def main(name: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    ddp = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 50)))
    handle = JOBS[name](ddp)
    try:
        while True:
            ddp(torch.ones(2, 50)).sum().backward()
            if handle.stats().steps == 5:
                print("trains", flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
