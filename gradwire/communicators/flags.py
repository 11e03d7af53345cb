"""The flag by which all ranks learn, with the payloads, that a gradient is not finite on one of them."""

import torch
from torch import Tensor

from gradwire.collective import SendReceive
from gradwire.compressors import Reduction


def flagged(reduction: Reduction, nonfinite: Tensor) -> Reduction:
    """The same collectives, whose messages carry `nonfinite` (1,) as a flag and add the others' flags to it.

    NaN stays NaN whatever is added, so once every rank has received something from every other, all have the same.
    """
    for op in reduction:
        # send the flag
        if op is not None and op.send.flags is not None:
            op.send.flags.copy_(nonfinite.expand_as(op.send.flags))
        yield op
        # sum the flags that came, if anything did
        match op:
            case None | SendReceive(source=None):
                continue
            case _:
                flags = op.receive.flags
        if flags is not None and len(flags) > 1:  # one of each rank, this one's among them
            torch.sum(flags[:, 0], 0, keepdim=True, out=nonfinite)
        elif flags is not None:
            nonfinite.add_(flags.view(1))
