"""Tokenizers: trained on the data that there is, or read from a local folder. Nothing is downloaded."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from gradwire.lab.models.hub import require_transformers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRAINED = "bpe:"
"""A tokenizer that is trained on the data is written `bpe:WORDS`, with the size of its vocabulary."""

_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
_LINES = 1000


@dataclass(frozen=True)
class Tokens:
    """A tokenizer with the numbers of its special tokens, None for those that it lacks."""

    core: "Tokenizer"
    """The tokenizer of the package tokenizers."""
    pad: int | None
    cls: int | None
    sep: int | None
    mask: int | None

    @property
    def vocabulary(self) -> int:
        return self.core.get_vocab_size()

    def tokenize(self, path: Path) -> NDArray[numpy.int32]:
        """The tokens of a text file, without special ones."""
        lines = lines_of(path)
        parts = [
            numpy.array(encoding.ids, numpy.int32)
            for some in iter(lambda: list(islice(lines, _LINES)), [])
            for encoding in self.core.encode_batch(some, add_special_tokens=False)
        ]
        return numpy.concatenate(parts)


def tokenizer(text: str, train: Iterable[str]) -> Tokens:
    """The tokenizer that `text` says: `bpe:WORDS` is trained on the texts of `train`, anything else is a folder.

    Raises ValueError for what is neither."""
    require_transformers(f"the tokenizer {text}")
    if text.startswith(TRAINED):
        size = text.removeprefix(TRAINED)
        if not size.isdecimal():
            raise ValueError(f"tokenizer={text}: write bpe:WORDS with the size of the vocabulary, such as bpe:30522")
        return _trained(train, int(size))
    return _from_folder(Path(text))


def files_of(text: str) -> list[Path]:
    """The files of the tokenizer that `text` says; none where it is trained."""
    return sorted(Path(text).glob("*.json"))


def lines_of(*paths: Path) -> Iterator[str]:
    """Line after line of text files."""
    for path in paths:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            yield from lines


def _trained(texts: Iterable[str], vocabulary: int) -> Tokens:
    """Byte-level pairs (https://arxiv.org/abs/1508.07909), the same on every rank; [CLS] and [SEP] around texts.

    What `tokenizers` trains as WordPiece differs from run to run (80 of 2,000 numbers), so ranks would disagree."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    # trained, then taught to put [CLS] and [SEP] around texts
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, core.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return Tokens(core, *map(core.token_to_id, _SPECIAL))


def _from_folder(folder: Path) -> Tokens:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"no tokenizer in {folder}: a folder with tokenizer.json, or bpe:WORDS ({reason})") from None
    special = (found.pad_token_id, found.cls_token_id, found.sep_token_id, found.mask_token_id)
    return Tokens(found.backend_tokenizer, *special)
