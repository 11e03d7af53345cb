"""Models that transformers builds from their configuration alone: random weights, nothing is downloaded."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_IMAGENET: dict[str, Any] = {"num_labels": 1000}
LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
"""What makes a BERT or a ViT a large one, besides its 24 layers."""


def require_transformers(model: str) -> None:
    """Raises ValueError where the package is not installed."""
    if find_spec("transformers") is None:
        raise ValueError(f"transformers, which builds {model}, is not installed: pip install 'gradwire[models]'")


class Logits(nn.Module):
    """A transformers model whose output is its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs as the model takes them first: images, or tokens (batch, time)."""
        return self.model(inputs).logits


class PreTraining(nn.Module):
    """BERT with both of its heads, its masked words and its pair of sentences.

    Tokens (batch, time) to logits (batch, time + 1, vocabulary); the last position holds the two logits of the
    sentences, all others of it being impossible.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the words and, after them, of the sentences."""
        heads = self.model(tokens)
        words, pair = heads.prediction_logits, heads.seq_relationship_logits
        padded = functional.pad(pair, (0, words.shape[-1] - pair.shape[-1]), value=float("-inf"))
        return torch.cat([words, padded[:, None]], 1)


def resnet(stages: Sequence[int], *, bottleneck: bool) -> Logits:
    """ResNet (https://arxiv.org/abs/1512.03385) with `stages` blocks in each stage, for any number of pixels."""
    from transformers import ResNetConfig, ResNetForImageClassification

    widths = [64 * 2**stage * (4 if bottleneck else 1) for stage in range(4)]
    kind = "bottleneck" if bottleneck else "basic"
    config = ResNetConfig(depths=list(stages), layer_type=kind, hidden_sizes=widths, **_IMAGENET)
    return Logits(ResNetForImageClassification(config))


def vit(stages: Sequence[int], pixels: int, **widths: Any) -> Logits:
    """Vision transformer on patches of 16 x 16 pixels (https://arxiv.org/abs/2010.11929)."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(image_size=pixels, num_hidden_layers=stages[0], **_IMAGENET, **widths)
    return Logits(ViTForImageClassification(config))


def bert(stages: Sequence[int], **widths: Any) -> PreTraining:
    """BERT in pre-training, 30,522 words (https://arxiv.org/abs/1810.04805)."""
    from transformers import BertConfig, BertForPreTraining

    return PreTraining(BertForPreTraining(BertConfig(num_hidden_layers=stages[0], **widths)))


def gpt2(stages: Sequence[int], **widths: Any) -> Logits:
    """GPT-2, 50,257 tokens.

    https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    return Logits(GPT2LMHeadModel(GPT2Config(n_layer=stages[0], use_cache=False, **widths)))
