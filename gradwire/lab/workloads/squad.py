"""Questions about texts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.lab.models import any_model, hub
from gradwire.lab.workloads import squad_files
from gradwire.lab.workloads.named import ModelOptions
from gradwire.lab.workloads.squad_files import Question, Windows
from gradwire.lab.workloads.task import Batch, DealtTask

_LONGEST_ANSWER = 30


@dataclass(frozen=True, kw_only=True)
class Squad(ModelOptions, DealtTask):
    """Finding the answers to SQuAD 1.1's questions, from train-v1.1.json and dev-v1.1.json in `folder`.

    `model` is a published BERT, whose `layers`, `width` and `dropout` may be given, or one of transformers, such as
    hf:distilbert. A question with its text is cut into windows of `length` tokens. `tokenizer` is bpe:WORDS, which is
    trained on the texts, or a folder with a tokenizer.json; by default bpe:30522, or that of `pretrained`. What it made
    of the files is kept below ~/.cache/gradwire.
    """

    name: ClassVar[str] = "squad"
    metric: ClassVar[str] = "f1"
    optimizer: ClassVar[Literal["sgd", "adamw"]] = "adamw"
    scored: ClassVar[tuple[str, ...]] = ("exact_match", "f1")
    narrow: ClassVar[tuple[str, ...]] = ()
    data: ClassVar[str] = "pairs"

    folder: Path
    model: str = "published-bert-base"
    length: int = 384
    batch: int = 8
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_model()
        self.windows  # noqa: B018

    @property
    def windows(self) -> tuple[Windows, Windows]:
        """To train on and held out, made once."""
        return squad_files.windows(self.folder, self.tokenizer_of(self.tokenizer, "bpe:30522"), self.length)

    @property
    def held_out_questions(self) -> tuple[Question, ...]:
        return squad_files.questions(self.folder / "dev-v1.1.json")

    def _module(self) -> nn.Module:
        vocabulary = int(self.windows[0].vocabulary)
        if self.pretrained:
            return any_model.pretrained("answers", self.pretrained, vocabulary)
        if self.published:
            return hub.answering(self.sized(length=self.length, outputs=vocabulary))
        return any_model.chosen("answers", self.model, vocab_size=vocabulary)

    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Each epoch deals a new permutation of the windows out to the ranks. Inputs are as `hub.Answers` takes them,
        targets the first and last token of the answer, (batch, 2)."""
        train, dealt = self.windows[0], self.dealt(rank, world, seed, start)
        return ((_inputs(train, index), train.spans[index].long()) for index in dealt)

    @property
    def train_size(self) -> int:
        return len(self.windows[0].tokens)

    @property
    def held_out_size(self) -> int:
        return len(self.held_out_questions)

    def held_out_batch(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All windows of these questions, with their own numbers and those of their questions."""
        first = self.windows[1].first
        numbers = torch.cat([torch.arange(int(first[q]), int(first[q + 1])) for q in index.tolist()])
        of = index.repeat_interleave(first[index + 1] - first[index])
        return _inputs(self.windows[1], numbers), numbers, of

    def scores(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> list[float]:
        """Exact matches and F1, summed over the questions, as SQuAD's own evaluation has them."""
        # the likeliest answer of each window
        inputs, numbers, of = batch
        spans, sureness = _best_spans(model(inputs), inputs)
        # of a question's windows the surest counts
        answers: dict[int, tuple[float, str]] = {}
        for number, question, span, sure in zip(*(x.tolist() for x in (numbers, of, spans, sureness)), strict=True):
            begins, ends = (int(self.windows[1].offsets[number, token, side]) for side, token in enumerate(span))
            answer = sure, self.held_out_questions[question].context[begins:ends]
            answers[question] = max(answers.get(question, answer), answer)
        # scores by SQuAD's own rules
        truths = {q: [text for _, text in self.held_out_questions[q].answers] for q in answers}
        matches = sum(squad_files.exact_match(answer, truths[q]) for q, (_, answer) in answers.items())
        return [matches, sum(squad_files.f1(answer, truths[q]) for q, (_, answer) in answers.items()), len(answers)]


def _inputs(windows: Windows, index: Tensor) -> Tensor:
    """Tokens, parts and mask, (windows, 3, length)."""
    place = torch.arange(windows.tokens.shape[1])
    filled = place < windows.filled[index, None]
    parts = (place >= windows.questions[index, None]) & filled
    return torch.stack([windows.tokens[index].long(), parts.long(), filled.long()], 1)


def _best_spans(logits: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest first and last token (windows, 2) within the text, at most 30 long, and their logits' sum."""
    _, parts, mask = inputs.unbind(1)
    length = logits.shape[-1]
    # every pair of a first and a last token, at most 30 apart, inside the text
    allowed = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu().tril(_LONGEST_ANSWER - 1)
    # the last token that is filled is [SEP]
    text = parts.bool() & functional.pad(mask[:, 1:], (0, 1)).bool()
    # (windows, first, last)
    pairs = logits[:, 0, :, None] + logits[:, 1, None, :]
    possible = allowed & text[:, :, None] & text[:, None, :]
    sureness, best = pairs.masked_fill(~possible, float("-inf")).flatten(1).max(1)
    return torch.stack([best // length, best % length], 1), sureness
