"""A GPT of few launches: one product for queries, keys and values, torch's own attention, one matrix of words."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Size(NamedTuple):
    """The size of a model and of a rank's batch."""

    depth: int
    width: int
    heads: int
    context: int
    """Tokens of a window."""
    batch: int
    """Windows of one rank and step."""
    words: int
    """The vocabulary that is wanted; without a tokenizer it is 256."""


FULL = Size(depth=8, width=512, heads=8, context=256, batch=16, words=8192)
"""29.5 M parameters."""
SMALL = Size(depth=3, width=128, heads=4, context=128, batch=4, words=1024)
"""0.74 M parameters, for CPUs."""
TINY = Size(depth=2, width=32, heads=2, context=32, batch=4, words=512)


class Block(nn.Module):
    """Attention to what came before, then two layers, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        parts = self.queries_keys_values(self.attention_norm(hidden)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = hidden + self.attended(found.transpose(1, 2).flatten(2))
        return hidden + self.down(functional.gelu(self.up(self.norm(hidden))))


class GPT(nn.Module):
    """Tokens (batch, time) to logits (batch, time, vocabulary); the head has the embedding's matrix, as in GPT-2."""

    def __init__(self, vocabulary: int, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.position = nn.Parameter(torch.empty(size.context, size.width))
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                into_shortcut = name.endswith(("attended.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * size.depth) ** 0.5 if into_shortcut else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.position
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.embedding.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """The mean loss () of windows (batch, context + 1) of tokens."""
        with torch.autocast(windows.device.type, dtype=torch.bfloat16):
            logits = self(windows[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
