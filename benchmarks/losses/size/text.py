"""Tokens of the Python files that are installed on this machine: byte-level pairs, or bytes without a tokenizer."""

import os
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from random import Random

import numpy
from numpy.typing import NDArray

TRAIN, HELD_OUT = "train.npy", "held_out.npy"
HELD_OUT_SHARE = 50
"""One of so many files is held out."""
BYTES_PER_TOKEN = 4
SMALLEST, LARGEST = 1 << 10, 1 << 20
"""Bytes. Longer files are mostly tables that a program wrote, shorter ones say little."""
LEARNED_FROM = 2_000
"""Files from which the tokenizer's pairs are learned."""
AT_ONCE = 256
"""Files that are encoded at once, on all cores."""


def write(folder: Path, tokens: int, words: int) -> dict[str, int]:
    """Writes about so many tokens to train on, and a fiftieth of that held out, as int16 (n,) into `folder`; fewer
    where there is less text. `words` is the size of the vocabulary. Returns what there is."""
    texts = list(distinct(BYTES_PER_TOKEN * tokens * (HELD_OUT_SHARE + 1) // HELD_OUT_SHARE))
    held_out = texts[::HELD_OUT_SHARE]
    del texts[::HELD_OUT_SHARE]
    if find_spec("tokenizers"):
        parts, vocabulary = _pairs(texts, held_out, words)
    else:
        parts, vocabulary = [_bytes(texts), _bytes(held_out)], 256
    for name, part in zip((TRAIN, HELD_OUT), parts, strict=True):
        numpy.save(folder / name, part)
    return {
        "vocabulary": vocabulary, "files": len(texts), "tokens": len(parts[0]), "files held out": len(held_out),
        "tokens held out": len(parts[1]),
    }  # fmt: skip


def distinct(most: int) -> Iterator[str]:
    """Texts of about so many bytes in all, no two of them equal; the order is drawn, the same each time."""
    seen, paths = set[bytes](), _files()
    Random(0).shuffle(paths)
    for path in paths:
        if most <= 0:
            return
        data = path.read_bytes()
        if SMALLEST <= len(data) <= LARGEST and (digest := sha256(data).digest()) not in seen:
            seen.add(digest)
            most -= len(data)
            yield data.decode(errors="replace")


def _files() -> list[Path]:
    """All Python files of the standard library and of the packages that are installed."""
    roots = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    walks = [walk for root in roots for walk in os.walk(root)]
    found = {Path(folder, name) for folder, _, names in walks for name in names if name.endswith(".py")}
    return sorted(path for path in found if path.is_file())


def _pairs(texts: Sequence[str], held_out: Sequence[str], words: int) -> tuple[list[NDArray[numpy.int16]], int]:
    """Both parts in byte-level pairs (https://arxiv.org/abs/1508.07909) learned from the first, and how many of them
    there are."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=words, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(texts[:LEARNED_FROM], trainer)

    def encoded(part: Sequence[str]) -> NDArray[numpy.int16]:
        some = (part[start : start + AT_ONCE] for start in range(0, len(part), AT_ONCE))
        return numpy.concatenate([numpy.array(e.ids, numpy.int16) for own in some for e in core.encode_batch(own)])

    return [encoded(texts), encoded(held_out)], core.get_vocab_size()


def _bytes(texts: Sequence[str]) -> NDArray[numpy.int16]:
    return numpy.frombuffer("".join(texts).encode(), numpy.uint8).astype(numpy.int16)
