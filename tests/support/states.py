"""States without what is drawn for each training."""

import json

from torch import Tensor

from gradwire import checkpoint
from gradwire.text_tensors import letters, text_of


def earlier(state: dict[str, Tensor], *lacking: str) -> dict[str, Tensor]:
    """A state as an earlier version wrote it: its description has no checksum, no training, and nothing `lacking`. So
    states of two trainings are equal where all else is."""
    said = json.loads(text_of(state[checkpoint.ABOUT]))
    for fields, key in ((said["tensors"], checkpoint.ABOUT), *((said, key) for key in ("training", *lacking))):
        fields.pop(key, None)
    return state | {checkpoint.ABOUT: letters(json.dumps(said))}
