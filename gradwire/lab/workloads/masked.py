"""BERT's pre-training: words that are masked, and whether one piece of text follows the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal

import numpy
import torch
from torch import Tensor, nn

from gradwire.lab.workloads import text
from gradwire.lab.workloads.named import ModelOptions
from gradwire.lab.workloads.task import IGNORED, Batch, WordsTask

_GUESSED, _MASKED, _REPLACED = 0.15, 0.8, 0.9
# [CLS] before the first piece, [SEP] after each
_SPECIAL = 3
_HELD_OUT_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Masked(ModelOptions, WordsTask):
    """BERT's pre-training (https://arxiv.org/abs/1810.04805) on WikiText's files in `folder`.

    A window of `length` tokens has two pieces of text; in every other one the second is from elsewhere. 15 % of the
    words are to be guessed: of these 80 % are masked, 10 % are others, 10 % are left. `model` is a published BERT, of
    which `layers`, `width` and `dropout` may be given. `tokenizer` as in wikitext, but neither words nor bytes.
    """

    name: ClassVar[str] = "masked"
    metric: ClassVar[str] = "perplexity"
    optimizer: ClassVar[Literal["sgd", "adamw"]] = "adamw"
    narrow: ClassVar[tuple[str, ...]] = ()
    data: ClassVar[str] = "pairs"

    folder: Path
    model: str = "published-bert-base"
    length: int = 64
    batch: int = 32
    tokenizer: str = "bpe:30522"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_model()
        if not self.published or self.pretrained:
            raise ValueError(f"{self.name} pre-trains a published BERT from the start, not {self.model}")
        # [CLS], [SEP] and [MASK]
        if len(self.corpus.special) != 3:
            raise ValueError(f"{self.name} needs a tokenizer that has [MASK], not {self.tokenizer}: give bpe:WORDS")
        if min(len(self.corpus.train), len(self.corpus.held_out)) < 2 * self.length:
            raise ValueError(f"the text is too short for windows of {self.length} tokens")

    @property
    def corpus(self) -> text.Corpus:
        return text.wikitext(self.folder, self.tokenizer)

    def _module(self) -> nn.Module:
        assert self.published
        return self.published.build(self.sized(length=self.length, outputs=self.corpus.vocabulary))

    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Each epoch deals the text's windows out to the ranks, and masks other words."""
        for step, index in zip(count(start), self.dealt(rank, world, seed, start), strict=False):
            yield self._pairs(self.corpus.train, index, numpy.random.default_rng([seed, step, rank]))

    @property
    def train_size(self) -> int:
        return len(self.corpus.train) // self._words

    @property
    def held_out_size(self) -> int:
        return len(self.corpus.held_out) // self._words

    def held_out_batch(self, index: Tensor) -> Batch:
        """Each window always has the same words masked."""
        draws = (numpy.random.default_rng([_HELD_OUT_SEED, number]) for number in index.tolist())
        pairs = [self._pairs(self.corpus.held_out, *each) for each in zip(index[:, None], draws, strict=True)]
        inputs, targets = zip(*pairs, strict=True)
        return torch.cat(inputs), torch.cat(targets)

    @property
    def _words(self) -> int:
        return self.length - _SPECIAL

    def _pairs(self, tokens: Tensor, index: Tensor, draw: numpy.random.Generator) -> Batch:
        """Windows (batch, length), and what is to be guessed, (batch, length + 1), of which the last is 1 where the
        second piece is from elsewhere."""
        # windows of two pieces, the second from elsewhere in every other one
        count = len(index)
        half = self._words // 2
        starts = index * self._words
        elsewhere = torch.from_numpy(draw.random(count) < 0.5)
        others = torch.from_numpy(draw.integers(len(tokens) - self._words, size=count))
        first = tokens[starts[:, None] + torch.arange(half)]
        seconds = torch.where(elsewhere, others, starts + half)
        second = tokens[seconds[:, None] + torch.arange(self._words - half)]
        cls, sep, mask = self.corpus.special
        # [CLS] first [SEP] second [SEP]
        begin, end = first.new_full((count, 1), cls), first.new_full((count, 1), sep)
        words = torch.cat([begin, first, end, second, end], 1).long()
        # words to guess: never the special tokens
        real = torch.ones(self.length, dtype=torch.bool)
        real[[0, half + 1, self.length - 1]] = False
        guessed = torch.from_numpy(draw.random(words.shape) < _GUESSED) & real
        # of these most are masked, some replaced, some left
        how = torch.from_numpy(draw.random(words.shape))
        replaced = torch.from_numpy(draw.integers(self.corpus.vocabulary, size=words.shape))
        inputs = torch.where(guessed & (how < _REPLACED), torch.where(how < _MASKED, mask, replaced), words)
        return inputs, torch.cat([words.masked_fill(~guessed, IGNORED), elsewhere.long()[:, None]], 1)
