"""The models: narrow editions of the usual ones, with the same profile of compute and of parameter sizes.

At their default widths they are the four models of the step-time benchmark.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradwire.lab.models.vgg import convolutions


class GPT(nn.Module):
    """Pre-norm causal transformer: tokens (batch, time <= context) to logits (batch, time, vocabulary).

    https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
    """

    def __init__(self, vocabulary: int, context: int, width: int = 256, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        # tokens and learned positions, blocks, and a head over the vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        # norms come first, as in GPT-2
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        hidden = self.embedding(tokens) + self.position[:time]
        # made anew each time: DDP would broadcast a buffer in every forward
        causal = torch.full((time, time), float("-inf"), device=tokens.device).triu(1)
        for block in self.blocks:
            hidden = block(hidden, causal)
        return self.head(self.norm(hidden))


def _vgg(stages: Sequence[tuple[int, int]], hidden: int, classes: int, channels: int, pixels: int) -> nn.Sequential:
    """VGG with batch normalisation: images (batch, channels, pixels, pixels) to logits (batch, classes). Behind the
    `stages`, as `convolutions` has them, are two layers of `hidden` units. https://arxiv.org/abs/1409.1556"""
    layers, channels, pixels = convolutions(stages, channels, pixels, batch_norm=True)
    head = [nn.Linear(channels * pixels**2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(hidden, classes))


def vgg16(width: int = 32, classes: int = 10, channels: int = 3, pixels: int = 32) -> nn.Sequential:
    """VGG-16 whose first stage has `width` channels (64 in the paper)."""
    stages = [(width, 2), (2 * width, 2), (4 * width, 3), (8 * width, 3), (8 * width, 3)]
    return _vgg(stages, 16 * width, classes, channels, pixels)


def cnn(width: int, classes: int, channels: int, pixels: int) -> nn.Sequential:
    """The first two stages of VGG: for small images."""
    return _vgg([(width, 2), (2 * width, 2)], 4 * width, classes, channels, pixels)


def lenet(width: int, classes: int, channels: int, pixels: int) -> nn.Sequential:
    """The small net of the MNIST examples of PyTorch and Horovod, whose `width` is 10: for images of 16 pixels or more.

    Raises ValueError for smaller ones."""
    # of the image after two convolutions of 5 and two poolings
    side = ((pixels - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"lenet takes images of at least 16 pixels along a side, not {pixels}: take cnn")
    return nn.Sequential(
        nn.Conv2d(channels, width, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(2 * width * side**2, 5 * width), nn.ReLU(), nn.Dropout(), nn.Linear(5 * width, classes),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        # the shortcut has the shape of what it is added to
        self.shortcut = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to the same with `width` channels, reduced by the stride."""
        return torch.relu(self.convolutions(images) + self.shortcut(images))


def resnet18(width: int = 32, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """ResNet-18 for small images, `width` channels first (64 in the paper, https://arxiv.org/abs/1512.03385)."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        wider = width * 2**stage
        layers += [ResidualBlock(channels, wider, 1 if stage == 0 else 2), ResidualBlock(wider, wider, 1)]
        channels = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
