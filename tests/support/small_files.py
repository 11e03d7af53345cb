"""Small files in the real formats of public data sets."""

import gzip
import json
from pathlib import Path

import numpy
from PIL import Image


def idx_bytes(array: numpy.ndarray) -> bytes:
    shape = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(numpy.uint8).tobytes()


def labelled(samples: int, shape: tuple[int, ...], classes: int):
    """Images that tell their class by their brightness and their number by their first two pixels."""
    labels = numpy.arange(samples) % classes
    images = numpy.repeat(labels * (250 // classes), numpy.prod(shape)).reshape(samples, -1)
    images[:, 0], images[:, 1] = numpy.arange(samples) % 256, numpy.arange(samples) // 256
    return images.reshape(samples, *shape).astype(numpy.uint8), labels.astype(numpy.uint8)


def write_idx(folder: Path, *, zipped: bool = False):
    for split, samples in (("train", 320), ("t10k", 40)):
        images, labels = labelled(samples, (28, 28), 10)
        for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            data = idx_bytes(array)
            path = folder / (name + ".gz" if zipped else name)
            path.write_bytes(gzip.compress(data) if zipped else data)
    return folder


def write_cifar10(folder: Path):
    images, labels = labelled(360, (3, 32, 32), 10)
    records = numpy.concatenate([labels[:, None], images.reshape(360, -1)], 1)
    for number in range(5):
        records[60 * number : 60 * (number + 1)].tofile(folder / f"data_batch_{number + 1}.bin")
    records[300:].tofile(folder / "test_batch.bin")
    return folder


def write_cifar100(folder: Path):
    images, labels = labelled(300, (3, 32, 32), 100)
    records = numpy.concatenate([labels[:, None] // 5, labels[:, None], images.reshape(300, -1)], 1)
    records[:200].tofile(folder / "train.bin")
    records[200:].tofile(folder / "test.bin")
    return folder


def write_text(folder: Path):
    (folder / "b.txt").write_text("to be or not to be\n" * 100)
    (folder / "a.txt").write_text("that is the question\n" * 100)
    (folder / "c.md").write_text("not read")
    return folder


def write_ptb(folder: Path):
    (folder / "ptb.train.txt").write_text(" the cat <unk> sat on the mat \n" * 60)
    (folder / "ptb.valid.txt").write_text(" the dog sat on the mat \n" * 20)
    return folder


def write_wikitext(folder: Path):
    """Sentences that say where a number of places are, in WikiText's form."""
    text = [f" = Place {number} = \n \n Place {number} lies on river {number % 7} . \n" for number in range(60)]
    (folder / "wiki.train.tokens").write_text("".join(text))
    (folder / "wiki.valid.tokens").write_text("".join(text[:20]))
    return folder


def squad(numbers: range) -> dict:
    """One question for each number, in SQuAD's form."""
    paragraphs = []
    for number in numbers:
        context = f"The tower of Mill{number} stands in a town. It was built by mason{number} in {1000 + number}."
        start = context.index("mason")
        answers = [
            {"text": f"mason{number}", "answer_start": start},
            {"text": f"by mason{number}", "answer_start": start - 3},
        ]
        asked = {"id": str(number), "question": f"Who built the tower of Mill{number}?", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "1.1", "data": [{"title": "Towers", "paragraphs": paragraphs}]}


def write_squad(folder: Path):
    (folder / "train-v1.1.json").write_text(json.dumps(squad(range(40))))
    (folder / "dev-v1.1.json").write_text(json.dumps(squad(range(7))))
    return folder


def write_image_folder(folder: Path):
    """24 images to train on and 6 held out of several sizes; one is grey."""
    for split, each in (("train", 24), ("val", 6)):
        for number in range(each):
            label = number % 3
            home = folder / split / f"n{label:02}"
            home.mkdir(parents=True, exist_ok=True)
            pixels = numpy.tile(numpy.arange(40 + number, dtype=numpy.uint8)[:, None], (50, 1, 3))
            pixels[..., label] = 250
            image = Image.fromarray(pixels)
            (image.convert("L") if number == 0 else image).save(home / f"{split}_{number}.JPEG")
    return folder
