"""A GPU's stream that passes the time."""

from functools import cache

import torch

PROBED_CYCLES = 20_000_000
"""Some 10 ms."""


def delay(seconds: float, device: torch.device) -> None:
    """Has the current stream of the GPU do nothing for so long."""
    torch.cuda._sleep(int(seconds * cycles_per_s(device)))


@cache
def cycles_per_s(device: torch.device) -> float:
    """The GPU's clock, as measured once."""
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # once to wake the clock up, then timed
        torch.cuda._sleep(PROBED_CYCLES)
        start.record()
        torch.cuda._sleep(PROBED_CYCLES)
        end.record()
        end.synchronize()
        return 1e3 * PROBED_CYCLES / start.elapsed_time(end)
