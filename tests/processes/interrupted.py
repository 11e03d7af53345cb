"""A rank that is interrupted by Ctrl-C in the middle of a step, and says whether its state is the last whole step's:
`python -m tests.processes.interrupted`."""

import os
import signal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw

STEPS = 5


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts without
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 50))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    handle = gw.attach(ddp, gw.TopK(0.1))
    step, kept = 0, dict[str, Tensor]()

    def press_keys(*_: object) -> None:
        """The last layer's gradients are there, and on their way."""
        if step == STEPS:
            os.kill(os.getpid(), signal.SIGINT)

    model[1].register_full_backward_hook(press_keys)
    try:
        while True:
            ddp(torch.randn(2, 50)).sum().backward()
            step, kept = step + 1, handle.state_dict()
    except KeyboardInterrupt:
        after = handle.state_dict()
        same = kept.keys() == after.keys() and all(torch.equal(kept[key], after[key]) for key in kept)
        print(f"interrupted after {step} steps; the same: {same}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
