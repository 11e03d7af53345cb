"""Models that transformers builds from their configuration alone: random weights, nothing is downloaded."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.lab.models.size import Size

_HEAD_WIDTH = 64


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


class Answers(nn.Module):
    """A model that finds the answer to a question in a text.

    Tokens, their part (0 for the question, 1 for the text) and what is not padding, as (batch, 3, time), to the logits
    of the answer's first and last token, (batch, 2, time).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.parts = getattr(model.config, "type_vocab_size", 0) > 1  # pyright: ignore[reportArgumentType]

    def forward(self, inputs: Tensor) -> Tensor:
        tokens, parts, mask = inputs.unbind(1)
        given: dict[str, Tensor] = {"token_type_ids": parts} if self.parts else {}
        found = self.model(input_ids=tokens, attention_mask=mask, **given)
        return torch.stack([found.start_logits, found.end_logits], 1)


def resnet(size: Size, *, bottleneck: bool, small: bool = False) -> Logits:
    """ResNet (https://arxiv.org/abs/1512.03385) for any number of pixels.

    A `small` one begins with one convolution of 3 x 3, as on CIFAR, instead of one of 7 x 7 and a pooling."""
    from transformers import ResNetConfig, ResNetForImageClassification

    # transformers' configuration of these sizes
    widths = [size.width * 2**stage * (4 if bottleneck else 1) for stage in range(4)]
    kind: dict[str, Any] = {"layer_type": "bottleneck" if bottleneck else "basic", "num_labels": size.outputs}
    stages: dict[str, Any] = {"depths": list(size.stages), "hidden_sizes": widths}
    config = ResNetConfig(num_channels=size.channels, embedding_size=size.width, **stages, **kind)
    model: Any = ResNetForImageClassification(config)
    # one convolution of 3 x 3 in place of 7 x 7 and pooling
    if small:
        first = nn.Conv2d(size.channels, size.width, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(first.weight, mode="fan_out", nonlinearity="relu")
        model.resnet.embedder.embedder.convolution, model.resnet.embedder.pooler = first, nn.Identity()
    return Logits(model)


def vit(size: Size) -> Logits:
    """Vision transformer on patches of 16 x 16 pixels (https://arxiv.org/abs/2010.11929)."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {"image_size": size.length, "num_channels": size.channels, "num_labels": size.outputs}
    config = ViTConfig(**_layer_options(size), **sizes)
    return Logits(ViTForImageClassification(config))


def pretraining(size: Size) -> PreTraining:
    """BERT in pre-training (https://arxiv.org/abs/1810.04805)."""
    from transformers import BertConfig, BertForPreTraining

    return PreTraining(BertForPreTraining(BertConfig(vocab_size=size.outputs, **_layer_options(size))))


def answering(size: Size) -> Answers:
    """BERT that answers questions (https://arxiv.org/abs/1810.04805)."""
    from transformers import BertConfig, BertForQuestionAnswering

    return Answers(BertForQuestionAnswering(BertConfig(vocab_size=size.outputs, **_layer_options(size))))


def gpt2(size: Size) -> Logits:
    """GPT-2.

    https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    (layers,) = size.stages
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    dropped = {} if size.dropout is None else dict.fromkeys(names, size.dropout)
    config = GPT2Config(
        n_layer=layers, n_embd=size.width, n_head=size.width // _HEAD_WIDTH, vocab_size=size.outputs, use_cache=False,
        bos_token_id=None, eos_token_id=None, **dropped,
    )  # fmt: skip
    return Logits(GPT2LMHeadModel(config))


def _layer_options(size: Size) -> dict[str, Any]:
    """Options that BERT and ViT share; their hidden layers are four times as wide."""
    (layers,), width = size.stages, size.width
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    dropped = {} if size.dropout is None else dict.fromkeys(names, size.dropout)
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // _HEAD_WIDTH,
        "intermediate_size": 4 * width,
    } | dropped
