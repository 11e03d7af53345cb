"""State dicts, for tests to compare."""

import io
import json

import torch
from torch import Tensor

from gradwire import Handle, checkpoint
from gradwire.text_tensors import letters, text_of


def kept(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What memories and compressors hold, without the step and what the state says of itself."""
    return {key: tensor for key, tensor in state.items() if "//" in key}


def residual_of(handle: Handle) -> Tensor:
    """All of a rank's residuals in one vector, by parameter."""
    state = handle.state_dict()
    return torch.cat([tensor.flatten() for key, tensor in sorted(state.items()) if key.endswith("//residual")])


def same_states(some: list[dict[str, Tensor]], others: list[dict[str, Tensor]]) -> None:
    """Each rank's is the same bit for bit, but for the number of steps, which counts skipped ones."""
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one.keys() - {"step", "about"})


def through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state as it is when it was saved and loaded."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def earlier(state: dict[str, Tensor], *lacking: str) -> dict[str, Tensor]:
    """A state as an earlier version wrote it: its description has no checksum, no training, and nothing `lacking`. So
    states of two trainings are equal where all else is."""
    said = json.loads(text_of(state[checkpoint.ABOUT]))
    for fields, key in ((said["tensors"], checkpoint.ABOUT), *((said, key) for key in ("training", *lacking))):
        fields.pop(key, None)
    return state | {checkpoint.ABOUT: letters(json.dumps(said))}
