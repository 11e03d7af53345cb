"""Image sets read from files into uint8 tensors: IDX, the binary version of CIFAR, scikit-learn's digits."""

import gzip
import zlib
from functools import cache
from pathlib import Path

import numpy
import torch
from numpy.typing import NDArray

from gradwire.lab.workloads.image_set import ImageSet, Splits

Bytes = NDArray[numpy.uint8]

_CIFAR_IMAGE = (3, 32, 32)
_PICKLED = ("data_batch_1", "train")


@cache
def digits() -> Splits:
    """scikit-learn's 1797 digits of 8 x 8 pixels, bundled with it; every fifth is held out."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    # pixels are counts of 0 to 16
    images = (pixels.reshape(-1, 1, 8, 8) * 15).astype(numpy.uint8)
    held_out = numpy.arange(len(images)) % 5 == 0
    return _image_set(images[~held_out], labels[~held_out]), _image_set(images[held_out], labels[held_out])


def _image_set(images: Bytes, labels: NDArray) -> ImageSet:
    return ImageSet(
        images=torch.from_numpy(images.copy()),
        labels=torch.from_numpy(labels.astype(numpy.int64)),
        channels=images.shape[1],
        pixels=images.shape[3],
    )


@cache
def idx(folder: Path) -> Splits:
    """MNIST or Fashion-MNIST: four IDX files, each plain or .gz. http://yann.lecun.com/exdb/mnist/."""
    return _idx_split(folder, "train"), _idx_split(folder, "t10k")


def _idx_split(folder: Path, split: str) -> ImageSet:
    images = _read_idx(folder / f"{split}-images-idx3-ubyte", 3)
    labels = _read_idx(folder / f"{split}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise ValueError(f"{folder} has {len(images)} {split} images but {len(labels)} {split} labels")
    return _image_set(images[:, None], labels)


def _read_idx(path: Path, dimensions: int) -> Bytes:
    """The array in an IDX file of unsigned bytes: magic, big-endian uint32 shape, then the values."""
    data = _read_plain_or_gz(path)
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"{path} is not an IDX file of unsigned bytes in {dimensions} dimension(s)")
    # the shape, then as many bytes as it says
    shape = numpy.frombuffer(data, ">u4", dimensions, offset=4).astype(int)
    expected = header + int(shape.prod())
    if len(data) != expected:
        raise ValueError(f"{path} holds {len(data)} bytes where its header says {expected}: is it cut short?")
    return numpy.frombuffer(data, numpy.uint8, offset=header).reshape(shape)


def _read_plain_or_gz(path: Path) -> bytes:
    if path.is_file():
        return path.read_bytes()
    zipped = path.with_name(path.name + ".gz")
    if not zipped.is_file():
        hint = "MNIST's IDX files have this name: `gradwire download mnist` (or fashion-mnist) and a folder gets them"
        raise ValueError(f"no file {path} (nor .gz): {hint}")
    # packed, as they are published
    try:
        return gzip.decompress(zipped.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{zipped} cannot be unpacked: {error}") from error


@cache
def cifar10(folder: Path) -> Splits:
    """CIFAR-10, binary version: records of a label and 3072 pixels. https://www.cs.toronto.edu/~kriz/cifar.html."""
    batches = [_read_cifar(folder / f"data_batch_{number}.bin", 1) for number in range(1, 6)]
    return _cifar_set(numpy.concatenate(batches)), _cifar_set(_read_cifar(folder / "test_batch.bin", 1))


@cache
def cifar100(folder: Path) -> Splits:
    """CIFAR-100, binary version: records of a coarse label, a fine label (the one used) and 3072 pixels."""
    train, test = (_read_cifar(folder / f"{split}.bin", 2)[:, 1:] for split in ("train", "test"))
    return _cifar_set(train), _cifar_set(test)


def _read_cifar(path: Path, labels: int) -> Bytes:
    """Records (samples, labels + 3072)."""
    if not path.is_file():
        pickled = any((path.parent / name).is_file() for name in _PICKLED)
        hint = ", but this folder holds the Python one, whose pickles are not read" if pickled else ""
        name = "cifar10" if labels == 1 else "cifar100"
        raise ValueError(
            f"no file {path}: it belongs to the binary version of CIFAR{hint}; `gradwire download {name}` and a folder "
            "gets it"
        )
    # the labels, then three planes of pixels
    data = numpy.fromfile(path, numpy.uint8)
    record = labels + numpy.prod(_CIFAR_IMAGE)
    if len(data) == 0 or len(data) % record:
        raise ValueError(f"{path} holds {len(data)} bytes, not whole records of {record}: is it cut short?")
    return data.reshape(-1, record)


def _cifar_set(records: Bytes) -> ImageSet:
    return _image_set(records[:, 1:].reshape(-1, *_CIFAR_IMAGE), records[:, 0])
