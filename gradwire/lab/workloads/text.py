"""Text as token tensors: Python's own sources, a folder of text files, the Penn Treebank."""

import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy
import torch
from torch import Tensor

BYTES = 256
_HELD_OUT_SHARE = 20
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Token numbers below `vocabulary`, one-dimensional: uint8 for bytes, int32 for words."""

    train: Tensor
    held_out: Tensor
    vocabulary: int


@cache
def python_sources(max_bytes: int) -> Corpus:
    """Bytes of the standard library's own sources; every 20th file is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = _sources(root)
    if not paths:
        raise ValueError(f"no .py files in {root}: name a folder of text files instead")
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
    train, held_out = (_words(folder / f"ptb.{split}.txt") for split in ("train", "valid"))
    number = {word: index for index, word in enumerate(dict.fromkeys(["<unk>", "<eos>", *train]))}
    return Corpus(
        torch.tensor([number[word] for word in train], dtype=torch.int32),
        torch.tensor([number.get(word, number["<unk>"]) for word in held_out], dtype=torch.int32),
        len(number),
    )


def _words(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"no file {path}: the Penn Treebank is read from ptb.train.txt and ptb.valid.txt")
    return path.read_text("utf-8", errors="replace").replace("\n", " <eos> ").split()
