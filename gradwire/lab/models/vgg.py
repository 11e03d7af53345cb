"""VGG as published: without batch normalisation, and with its three wide layers at the end."""

from collections.abc import Sequence

from torch import Tensor, nn

_WIDTHS = (64, 128, 256, 512, 512)
_HIDDEN = 4096


class VGG(nn.Module):
    """Images (batch, 3, pixels, pixels) of at least 32 pixels to logits (batch, classes).

    `stages` are the convolutions before each of the five poolings. https://arxiv.org/abs/1409.1556
    """

    def __init__(self, stages: Sequence[int], classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in zip(_WIDTHS, stages, strict=True):
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten())
        hidden = (nn.Linear(channels * 7 * 7, _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN))
        regularised = [part for layer in hidden for part in (layer, nn.ReLU(inplace=True), nn.Dropout())]
        self.classifier = nn.Sequential(*regularised, nn.Linear(_HIDDEN, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the classes."""
        return self.classifier(self.features(images))
