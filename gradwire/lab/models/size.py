"""How large a model is built."""

from dataclasses import dataclass

Stages = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Size:
    """What one building function is told.

    `stages` are the layers, part by part; `length` is a side of the image in pixels, or a window's tokens; `width` is
    the channels of the first stage of a convolutional model, and the size of a hidden state elsewhere. `outputs` are
    classes or words. `dropout` is a share, or None for the model's own.
    """

    stages: Stages
    length: int
    width: int
    outputs: int
    channels: int = 3
    dropout: float | None = None
