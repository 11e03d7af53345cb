"""Stochastic rounding: see `gradwire.ops.reference.rounding`."""

import numpy as np
import torch
from torch import Tensor

from gradwire.ops.native.addresses import address
from gradwire.ops.native.library import library
from gradwire.ops.noise import Seed


def round_stochastically(x: Tensor, out: Tensor, seed: Seed) -> None:
    """See the reference."""
    n, state = len(x), np.random.SFC64(seed.number).state["state"]["state"]
    library().gw_round_stochastically(address("x", x, n), n, address("out", out, n, torch.bfloat16), state.ctypes.data)
