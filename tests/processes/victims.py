"""A rank that trains until another one is lost, and prints its error: `python -m tests.processes.victims NAME`."""

import os
import sys
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

TIMEOUT_S = 15


class Fails(gw.TopK):
    """On rank 1, after some steps."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self._steps = 0

    def encode(self, *arguments):
        self._steps += 1
        if self._steps == 40 and dist.get_rank() == 1:
            raise ArithmeticError("too much")
        return super().encode(*arguments)


JOBS = {
    "fails": lambda ddp: gw.attach(ddp, Fails()),
    "topk": partial(gw.attach, compressor=gw.TopK(0.1)),
    "fp16": partial(gw.attach, compressor=gw.FP16()),
    "verify": partial(gw.attach, compressor=gw.TopK(0.1)),
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
                if name == "verify":
                    # rank 1 is killed; rank 2 computes for longer than the others wait
                    time.sleep(1 if dist.get_rank() == 0 else 14)
                    handle.verify()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
