"""State dicts, for tests to compare."""

import io

import torch
from torch import Tensor


def kept(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What memories and compressors hold, without the step and what the state says of itself."""
    return {key: tensor for key, tensor in state.items() if "//" in key}


def through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state as it is when it was saved and loaded."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
