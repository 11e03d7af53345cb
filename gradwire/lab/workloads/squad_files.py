"""SQuAD 1.1 from its JSON files, as windows of tokens. https://arxiv.org/abs/1606.05250"""

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray
from torch import Tensor

from gradwire.lab.workloads.disk_cache import cached
from gradwire.lab.workloads.tokens import files_of
from gradwire.lab.workloads.tokens import tokenizer as tokens_of

if TYPE_CHECKING:
    from tokenizers import Encoding

# a window shares a third of its length with the next: 128 of 384
_OVERLAP = 3
_SPECIAL = 3  # [CLS] and two [SEP]
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class Question:
    """A question about a text; `answers` are (where it begins in the text, the answer)."""

    context: str
    """The text."""
    question: str
    answers: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Windows:
    """Questions with a part of their text each, W of them in all.

    `tokens` (W, length), of which the first `questions` (W,) belong to the question and all but the first `filled` (W,)
    are padding; `spans` (W, 2) are the first and last token of the answer, 0 where the window has none. Question q has
    the windows `first[q]` to `first[q + 1]`; `offsets` (W, length, 2) are where a token begins and ends in its text.
    """

    tokens: Tensor
    questions: Tensor
    filled: Tensor
    spans: Tensor
    first: Tensor
    offsets: Tensor
    vocabulary: Tensor


@cache
def questions(path: Path) -> tuple[Question, ...]:
    """All questions of a file. Raises ValueError for a file that is none of SQuAD 1.1."""
    if not path.is_file():
        raise ValueError(f"no file {path}: SQuAD is read from train-v1.1.json and dev-v1.1.json")
    try:
        found = tuple(_questions(json.loads(path.read_text("utf-8"))))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of SQuAD 1.1: {error!r}") from None
    if unanswered := next((question for question in found if not question.answers), None):
        raise ValueError(f"{path} has a question without answer ({unanswered.question!r}): SQuAD 1.1 is read, not 2.0")
    return found


def _questions(data: Any) -> Iterator[Question]:
    for paragraph in chain.from_iterable(article["paragraphs"] for article in data["data"]):
        for asked in paragraph["qas"]:
            answers = tuple((answer["answer_start"], answer["text"]) for answer in asked["answers"])
            yield Question(paragraph["context"], asked["question"], answers)


@cache
def windows(folder: Path, tokenizer: str, length: int) -> tuple[Windows, Windows]:
    """Those to train on and those held out; a tokenizer that is trained sees the texts to train on and their
    questions."""
    files = [folder / f"{split}-v1.1.json" for split in ("train", "dev")]
    # made once, and kept on disk
    train, held_out = (questions(file) for file in files)

    def make() -> dict[str, NDArray[numpy.int32]]:
        texts = chain(dict.fromkeys(each.context for each in train), (each.question for each in train))
        tokens = tokens_of(tokenizer, texts)
        _check_length(length, [each.question for each in (*train, *held_out)], tokens.core)
        # only the text is cut, into windows that overlap
        tokens.core.enable_truncation(length, stride=length // _OVERLAP, strategy="only_second")
        tokens.core.enable_padding(length=length, pad_id=tokens.pad or 0)
        made = {"train": _windows(train, tokens.core), "dev": _windows(held_out, tokens.core)}
        sizes = {f"{split}-vocabulary": numpy.array(tokens.vocabulary, numpy.int32) for split in made}
        return {f"{split}-{name}": array for split, own in made.items() for name, array in own.items()} | sizes

    arrays = cached(f"squad {tokenizer} {length}", [*files, *files_of(tokenizer)], make)
    names = Windows.__dataclass_fields__
    parts = (Windows(**{name: arrays[f"{split}-{name}"] for name in names}) for split in ("train", "dev"))
    return next(parts), next(parts)


def _check_length(length: int, asked: list[str], core: Any) -> None:
    longest = max(len(encoding.ids) for encoding in core.encode_batch(asked, add_special_tokens=False))
    if length <= longest + _SPECIAL + length // _OVERLAP:
        raise ValueError(f"length={length} leaves no room for text beside a question of {longest} tokens: give more")


def _windows(asked: Sequence[Question], core: Any) -> dict[str, NDArray[numpy.int32]]:
    # a long text gives several windows
    encodings = core.encode_batch([(each.question, each.context) for each in asked])
    cut = [[encoding, *encoding.overflowing] for encoding in encodings]
    flat = [(window, each) for windows, each in zip(cut, asked, strict=True) for window in windows]
    # by window: tokens, where the text begins, the answer; by question: its first window
    rows: dict[str, list[Any]] = {
        "tokens": [window.ids for window, _ in flat],
        "questions": [window.sequence_ids.index(1) for window, _ in flat],
        "filled": [sum(window.attention_mask) for window, _ in flat],
        "spans": [_span(window, *each.answers[0]) for window, each in flat],
        "first": numpy.cumsum([0, *map(len, cut)]).tolist(),
        "offsets": [window.offsets for window, _ in flat],
    }
    return {name: numpy.array(row, numpy.int32) for name, row in rows.items()}


def _span(window: "Encoding", start: int, answer: str) -> tuple[int, int]:
    """The answer's first and last token."""
    first, last = window.char_to_token(start, 1), window.char_to_token(start + len(answer) - 1, 1)
    return (0, 0) if first is None or last is None else (first, last)


def normalized(answer: str) -> list[str]:
    """Its words, without case, punctuation and articles: as SQuAD's own evaluation compares answers."""
    text = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return _ARTICLES.sub(" ", text).split()


def exact_match(answer: str, truths: Sequence[str]) -> float:
    """1 where the answer is one of the true ones."""
    return float(any(normalized(answer) == normalized(truth) for truth in truths))


def f1(answer: str, truths: Sequence[str]) -> float:
    """The words that it shares with the true answer that it shares most with: 2 x common / (own + true)."""
    own = normalized(answer)
    return max(_f1(own, normalized(truth)) for truth in truths)


def _f1(own: list[str], true: list[str]) -> float:
    common = sum((Counter(own) & Counter(true)).values())
    return 2 * common / (len(own) + len(true)) if common else 0.0
