"""Next-token tasks: windows cut from a text at random offsets."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from gradwire.lab.workloads import text
from gradwire.lab.workloads.base import Batch, Task, epoch
from gradwire.lab.workloads.models import GPT, LSTM

_HELD_OUT_WINDOWS = 128


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Predicting the next token of a text with a small GPT or an LSTM; `heads` is for the GPT alone.

    A rank's batch is `batch` windows of `context` tokens. Raises ValueError for an unknown model, a width
    that the heads do not divide, and a text too short for one window.
    """

    metric: ClassVar[Literal["loss", "accuracy"]] = "loss"

    model: Literal["gpt", "lstm"] = "gpt"
    width: int = 256
    depth: int = 2
    heads: int = 4
    context: int = 64
    batch: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in ("gpt", "lstm"):
            raise ValueError(f"model must be gpt or lstm, got {self.model}")
        if self.model == "gpt" and self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width {self.width} and heads {self.heads}")
        shortest = min(len(self.corpus.train) - self.context, len(self.corpus.held_out))
        if shortest <= self.context:
            raise ValueError(
                f"the text is too short for a context of {self.context}: {len(self.corpus.train)} tokens to"
                f" train on, {len(self.corpus.held_out)} held out"
            )

    @property
    @abstractmethod
    def corpus(self) -> text.Corpus:
        """The text to train on and the text held out, read once per process."""

    def _module(self) -> nn.Module:
        if self.model == "lstm":
            return LSTM(self.corpus.vocabulary, self.width, self.depth)
        return GPT(self.corpus.vocabulary, self.context, self.width, self.depth, self.heads)

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Each epoch cuts the text into windows from a new random offset and deals them out to the ranks."""
        tokens, generator = self.corpus.train, Generator().manual_seed(seed)
        windows = len(tokens) // self.context - 1
        while True:
            offset = int(torch.randint(self.context, (), generator=generator))
            for window in epoch(generator, windows, self.batch, rank, world):
                yield self._cut(tokens, offset + window * self.context)

    def held_out(self) -> Batch:
        """128 windows (fewer where the text is short), spread evenly over the held-out text."""
        tokens = self.corpus.held_out
        last = len(tokens) - self.context - 1
        windows = min(_HELD_OUT_WINDOWS, last // self.context + 1)
        return self._cut(tokens, torch.linspace(0, last, windows, dtype=torch.float64).long())

    def _cut(self, tokens: Tensor, starts: Tensor) -> Batch:
        windows = tokens[starts[:, None] + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True, kw_only=True)
class LanguageModel(TextTask):
    """Byte-level language model on the Python standard library's own sources, up to `max_bytes` of them."""

    name: ClassVar[str] = "lm"

    max_bytes: int = 8_000_000

    @property
    def corpus(self) -> text.Corpus:
        """Whole files are held out."""
        return text.python_sources(self.max_bytes)


@dataclass(frozen=True, kw_only=True)
class TextFiles(TextTask):
    """Byte-level language model on the .txt files of `folder`, up to `max_bytes` of them."""

    name: ClassVar[str] = "text"

    folder: Path
    max_bytes: int = 8_000_000

    @property
    def corpus(self) -> text.Corpus:
        """The last twentieth is held out."""
        return text.text_files(self.folder, self.max_bytes)


@dataclass(frozen=True, kw_only=True)
class PennTreebank(TextTask):
    """Word-level language model on the Penn Treebank's files in `folder`."""

    name: ClassVar[str] = "ptb"

    folder: Path

    @property
    def corpus(self) -> text.Corpus:
        """ptb.train.txt and ptb.valid.txt."""
        return text.penn_treebank(self.folder)
