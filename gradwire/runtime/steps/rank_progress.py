"""The place of the training thread by its stack, asked for when a job ends, so that a step pays nothing for it."""

import sys

import torch

FILE = sys.modules[torch.optim.Optimizer.__module__].__file__
"""torch wraps the `step()` of every optimizer with a function of this file."""


def in_optimizer(thread: int) -> bool:
    """Whether the thread with this `threading.get_ident()` is inside a step of some optimizer. Frames are asked for
    their code alone: a frame that was asked for its variables keeps them."""
    frame = sys._current_frames().get(thread)
    # from the innermost call outwards
    while frame:
        if frame.f_code.co_filename == FILE:
            return True
        frame = frame.f_back
    return False
