"""Text as token tensors: Python's own sources, a folder of text files, the Penn Treebank, WikiText."""

import os
import sysconfig
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwire.lab.workloads.disk_cache import cached
from gradwire.lab.workloads.tokens import files_of, lines_of
from gradwire.lab.workloads.tokens import tokenizer as tokens_of

BYTES = 256
_HELD_OUT_SHARE = 20
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Token numbers below `vocabulary`, one-dimensional: uint8 for bytes, int32 for words.

    `special` are the numbers of those of [CLS], [SEP] and [MASK] that there are."""

    train: Tensor
    held_out: Tensor
    vocabulary: int
    special: tuple[int, ...] = ()


@cache
def python_sources(max_bytes: int) -> Corpus:
    """Bytes of the standard library's own sources; every 20th file is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = _sources(root)
    if not paths:
        raise ValueError(f"no .py files in {root}: name a folder of text files instead")
    # whole files are held out
    held_out = paths[::_HELD_OUT_SHARE]
    train = [path for path in paths if path not in set(held_out)]
    return Corpus(_read(train, max_bytes), _read(held_out, max_bytes), BYTES)


def _sources(root: Path) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_THE_LIBRARY]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(found)


@cache
def text_files(folder: Path, max_bytes: int) -> Corpus:
    """Bytes of the folder's .txt files, joined in name order; the last twentieth is held out."""
    paths = sorted(folder.glob("*.txt"))
    if not paths:
        raise ValueError(f"no file {folder / '*.txt'}: a text folder holds at least one .txt file")
    text = _read(paths, max_bytes)
    train = len(text) - len(text) // _HELD_OUT_SHARE
    return Corpus(text[:train], text[train:], BYTES)


def _read(paths: Iterable[Path], max_bytes: int) -> Tensor:
    text = bytearray()
    for path in paths:
        text += path.read_bytes()
        if len(text) >= max_bytes:
            break
    return torch.from_numpy(numpy.frombuffer(text[:max_bytes], numpy.uint8))


@cache
def penn_treebank(folder: Path) -> Corpus:
    """Words of ptb.train.txt (which sets the vocabulary) and ptb.valid.txt, <eos> ending each line.

    The real files give 10,000 words, <unk> and <eos> among them.
    """
    paths = [folder / f"ptb.{split}.txt" for split in ("train", "valid")]
    if missing := [path for path in paths if not path.is_file()]:
        raise ValueError(f"no file {missing[0]}: the Penn Treebank is read from ptb.train.txt and ptb.valid.txt")
    arrays = _words(*paths)
    train, held_out = (torch.from_numpy(arrays[name]) for name in ("train", "held_out"))
    return Corpus(train, held_out, int(arrays["vocabulary"][0]))


def _words(train: Path, held_out: Path) -> dict[str, NDArray[numpy.int32]]:
    """Numbers of words in the order in which `train` has them; those that it lacks are <unk>."""
    # numbers in the order of the training text
    number = {"<unk>": 0, "<eos>": 1}
    known = array("i", (number.setdefault(word, len(number)) for word in _words_of(train)))
    found = array("i", (number.get(word, 0) for word in _words_of(held_out)))
    return {
        "train": numpy.array(known, numpy.int32),
        "held_out": numpy.array(found, numpy.int32),
        "vocabulary": numpy.array([len(number)], numpy.int32),
        "special": numpy.array([], numpy.int32),
    }


def _words_of(path: Path) -> Iterator[str]:
    for line in lines_of(path):
        yield from line.split()
        if line.endswith("\n"):
            yield "<eos>"


@cache
def wikitext(folder: Path, tokenizer: str) -> Corpus:
    """WikiText-2 or -103, wiki.train and wiki.valid with .tokens or .raw, as `words`, `bytes`, or what a tokenizer
    makes of them, which is trained on wiki.train or read from a folder. https://arxiv.org/abs/1609.07843"""
    # as they are, or kept on disk as tokens
    train, held_out = (_wikitext_file(folder, split) for split in ("train", "valid"))
    if tokenizer == "bytes":
        return Corpus(_read([train], train.stat().st_size), _read([held_out], held_out.stat().st_size), BYTES)

    def make() -> dict[str, NDArray[numpy.int32]]:
        if tokenizer == "words":
            return _words(train, held_out)
        tokens = tokens_of(tokenizer, lines_of(train))
        # those that the tokenizer has, for masked words
        special = [number for number in (tokens.cls, tokens.sep, tokens.mask) if number is not None]
        numbers = {"vocabulary": [tokens.vocabulary], "special": special}
        parts = {"train": tokens.tokenize(train), "held_out": tokens.tokenize(held_out)}
        return parts | {name: numpy.array(own, numpy.int32) for name, own in numbers.items()}

    arrays = cached(f"wikitext {tokenizer}", [train, held_out, *files_of(tokenizer)], make)
    return Corpus(arrays["train"], arrays["held_out"], int(arrays["vocabulary"]), tuple(arrays["special"].tolist()))


def _wikitext_file(folder: Path, split: str) -> Path:
    found = [path for ending in ("tokens", "raw") if (path := folder / f"wiki.{split}.{ending}").is_file()]
    if not found:
        raise ValueError(f"no file {folder / f'wiki.{split}.tokens'} (nor .raw): WikiText's files have this name")
    return found[0]
