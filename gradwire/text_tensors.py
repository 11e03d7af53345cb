"""Texts as tensors, for states that hold tensors only."""

import torch
from torch import Tensor


def letters(text: str) -> Tensor:
    """A text as bytes (n,) uint8."""
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def text_of(letters: Tensor) -> str:
    """The inverse of `letters`."""
    return bytes(letters.tolist()).decode()
