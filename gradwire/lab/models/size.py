"""Sizes of models."""

from dataclasses import dataclass

Stages = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of a model to build."""

    stages: Stages
    """Layers, part by part."""
    length: int
    """A side of the image in pixels, or a window's tokens."""
    width: int
    """Channels of the first stage of a convolutional model, else the size of a hidden state."""
    outputs: int
    """Classes or words."""
    channels: int = 3
    dropout: float | None = None
    """None for the model's own."""
