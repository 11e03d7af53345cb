"""VGG: its convolutions, and the published model with three wide layers at the end."""

from collections.abc import Iterable

from torch import Tensor, nn

from gradwire.lab.models.size import Size

_WIDTHS = (1, 2, 4, 8, 8)
_HIDDEN = 64
_GRID = 7


class VGG(nn.Module):
    """Images (batch, channels, pixels, pixels) to logits (batch, classes). https://arxiv.org/abs/1409.1556

    The size's stages are the convolutions before each of the five poolings, which are left out where the image is
    one pixel already; of its width (64 in the paper) all others are multiples. Weights start as He et al.
    (https://arxiv.org/abs/1502.01852) have them, without which the deep ones without normalisation do not learn.
    """

    def __init__(self, size: Size, *, batch_norm: bool) -> None:
        super().__init__()
        stages = zip((size.width * widening for widening in _WIDTHS), size.stages, strict=True)
        layers, channels, _ = convolutions(stages, size.channels, size.length, batch_norm=batch_norm)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(_GRID), nn.Flatten())
        self.classifier = _classifier(channels * _GRID**2, size)
        self.apply(_start)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def convolutions(
    stages: Iterable[tuple[int, int]], channels: int, pixels: int, *, batch_norm: bool
) -> tuple[list[nn.Module], int, int]:
    """The layers of stages, each of a width and a number of convolutions, and the channels and pixels along a side that
    come out. Each ends with a 2 x 2 max pooling, left out where the image is one pixel already."""
    layers: list[nn.Module] = []
    for width, count in stages:
        for _ in range(count):
            norm = [nn.BatchNorm2d(width)] if batch_norm else []
            layers += [nn.Conv2d(channels, width, 3, padding=1), *norm, nn.ReLU(inplace=True)]
            channels = width
        if pixels > 1:
            layers.append(nn.MaxPool2d(2))
            pixels //= 2
    return layers, channels, pixels


def _classifier(inputs: int, size: Size) -> nn.Sequential:
    hidden = _HIDDEN * size.width
    dropout = 0.5 if size.dropout is None else size.dropout
    wide = (nn.Linear(inputs, hidden), nn.Linear(hidden, hidden))
    regularised = [part for layer in wide for part in (layer, nn.ReLU(inplace=True), nn.Dropout(dropout))]
    return nn.Sequential(*regularised, nn.Linear(hidden, size.outputs))


def _start(layer: nn.Module) -> None:
    match layer:
        case nn.Conv2d():
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        case nn.Linear():
            nn.init.normal_(layer.weight, std=0.01)
        case _:
            return
    # both kinds of layers start with a bias of zero
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
