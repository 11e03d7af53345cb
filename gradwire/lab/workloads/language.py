"""Next-token tasks: windows cut from a text, at random offsets or one after the other."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from gradwire.lab.models import any_model
from gradwire.lab.models.lstm import LSTM
from gradwire.lab.workloads import text
from gradwire.lab.workloads.named import ModelOptions
from gradwire.lab.workloads.narrow_models import GPT
from gradwire.lab.workloads.task import IGNORED, Batch, WordsTask

_WIDTH, _LAYERS = 256, 2


@dataclass(frozen=True, kw_only=True)
class TextTask(ModelOptions, WordsTask):
    """Predicting the next token of a text.

    `model` is gpt or lstm, small ones of `layers` layers, by default 2, and `width`, by default 256, where `heads` is
    for the GPT alone; a published one, such as published-gpt2; or one of transformers, such as hf:llama. Of published
    models `layers`, `width` and `dropout` replace the published ones. A rank's batch is `batch` windows of `context`
    tokens.

    Raises ValueError for an unknown model, a width that the heads do not divide, and a text too short for one window.
    """

    metric: ClassVar[str] = "loss"
    optimizer: ClassVar[Literal["sgd", "adamw"]] = "adamw"
    sample: ClassVar[int] = 128
    narrow: ClassVar[tuple[str, ...]] = ("gpt", "lstm")
    whole: ClassVar[tuple[str, ...]] = ("dropout",)
    data: ClassVar[str] = "text"

    model: str = "gpt"
    heads: int = 4
    context: int = 64
    batch: int = 8
    carry: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_model()
        if self.carry and (self.pretrained or not self.model.endswith("lstm")):
            raise ValueError(f"carry=true is for an LSTM, not for {self.pretrained or self.model}; use model=lstm")
        width = self.width or _WIDTH
        if self.model == "gpt" and width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width {width} and heads {self.heads}")
        # a window to train on, and one to evaluate on, at least
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
        model: Any = self._chosen_model()
        if self.carry:
            model.carries = True
        return model

    def _chosen_model(self) -> nn.Module:
        # weights, a published model, one of transformers, or a small one
        words = self.corpus.vocabulary
        if self.pretrained:
            return any_model.pretrained("text", self.pretrained, words)
        if self.published:
            return self.published.build(self.sized(length=self.context, outputs=words))
        if self.model.startswith(any_model.PREFIX):
            return any_model.chosen("text", self.model, vocab_size=words, use_cache=False)
        width, layers = self.width or _WIDTH, self.layers or _LAYERS
        if self.model == "lstm":
            return LSTM(words, width, layers)
        return GPT(words, self.context, width, layers, self.heads)

    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Each epoch cuts the text into windows from a new random offset and deals them out to the ranks; with `carry`
        it begins with the first windows again."""
        tokens = self.corpus.train
        return (self._cut(tokens, starts) for starts in self.dealt(rank, world, seed, start))

    def _epoch(self, generator: Generator, rank: int, world: int) -> Tensor:
        """Where a rank's windows begin, (steps, batch)."""
        if self.carry:
            return self._in_order(rank, world)
        offset = int(torch.randint(self.context, (), generator=generator))
        return offset + self.context * super()._epoch(generator, rank, world)

    def _in_order(self, rank: int, world: int) -> Tensor:
        """Where a rank's windows begin, (steps, batch): one column is one part of the text."""
        steps, parts = self.epoch_steps(world), self.batch * rank + torch.arange(self.batch)
        return self.context * (steps * parts + torch.arange(steps)[:, None])

    @property
    def train_size(self) -> int:
        """The whole windows in the text, wherever the first begins."""
        return len(self.corpus.train) // self.context - 1

    @property
    def held_out_size(self) -> int:
        """The windows in the held-out text, one after the other; the last may overlap."""
        return (len(self.corpus.held_out) - 2) // self.context + 1

    def held_out_batch(self, index: Tensor) -> Batch:
        """Windows; the part that the last one shares with the one before is ignored in its targets."""
        tokens = self.corpus.held_out
        starts, last = index * self.context, len(tokens) - self.context - 1
        inputs, targets = self._cut(tokens, starts.clamp(max=last))
        seen = torch.arange(self.context) < (starts - last)[:, None]
        return inputs, targets.masked_fill(seen, IGNORED)

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
        """Python's sources, of which whole files are held out."""
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
        return text.penn_treebank(self.folder)


@dataclass(frozen=True, kw_only=True)
class WikiText(TextTask):
    """Language model on WikiText's files in `folder`, wiki.train.tokens and wiki.valid.tokens, or those with .raw.

    `tokenizer` is words, bytes, bpe:WORDS, which is trained on wiki.train, or a folder with a tokenizer.json; by
    default words, or that of `pretrained`. What it made of the files is kept below ~/.cache/gradwire.
    """

    name: ClassVar[str] = "wikitext"

    folder: Path
    tokenizer: str | None = None

    @property
    def corpus(self) -> text.Corpus:
        return text.wikitext(self.folder, self.tokenizer_of(self.tokenizer, "words"))
