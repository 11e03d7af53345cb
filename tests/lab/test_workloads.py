"""Workloads: the models' sizes, loaders on small files of the real formats, sharding, learning."""

from itertools import islice
from pathlib import Path

import numpy
import pytest
import torch

from gradwire.lab.workloads import (
    Cifar10,
    Cifar100,
    Digits,
    FashionMnist,
    LanguageModel,
    Mnist,
    PennTreebank,
    Synthetic,
    TextFiles,
)
from gradwire.lab.workloads.narrow_models import GPT, resnet18, vgg16
from gradwire.lab.workloads.task import epoch
from gradwire.lab.workloads.text import python_sources
from tests.support.small_files import (
    idx_bytes,
    labelled,
    write_cifar10,
    write_cifar100,
    write_idx,
    write_ptb,
    write_text,
)

TINY_TEXT = {"width": 32, "layers": 1, "heads": 2, "context": 16, "batch": 8}
TINY_IMAGES = {"model": "cnn", "width": 4, "batch": 16}


# models


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"),
    [("vgg16", 4_083_754, 58), ("resnet18", 2_797_610, 62), ("lstm", 6_252_496, 11), ("gpt", 5_273_088, 53)],
)
def test_the_benchmark_models_have_the_reference_sizes(model, parameters, tensors):
    sizes = [parameter.numel() for parameter in Synthetic(model=model).build_model(0).parameters()]
    assert (sum(sizes), len(sizes)) == (parameters, tensors)


@pytest.mark.parametrize(
    ("model", "inputs", "targets"),
    [
        ("vgg16", (8, 3, 32, 32), (8,)),
        ("resnet18", (8, 3, 32, 32), (8,)),
        ("lstm", (4, 32), (4, 32)),
        ("gpt", (4, 64), (4, 64)),
    ],
)
def test_the_benchmark_batches_have_the_reference_shapes_and_differ_between_ranks(model, inputs, targets):
    task = Synthetic(model=model)
    (x, y), (other, _) = next(task.batches(0, 2, 0)), next(task.batches(1, 2, 0))
    assert (x.shape, y.shape) == (inputs, targets)
    assert not torch.equal(x, other)
    assert torch.equal(x, next(task.batches(0, 2, 0))[0])


def test_the_full_widths_are_the_published_models():
    assert sum(p.numel() for p in resnet18(64).parameters()) == 11_173_962
    convolutions = [m for m in vgg16(64).modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 13
    assert sum(p.numel() for m in convolutions for p in m.parameters()) == 14_714_688


@pytest.mark.parametrize("pixels", [8, 28, 32, 64])
def test_vgg_takes_images_of_any_size(pixels):
    model = vgg16(2, classes=7, channels=1, pixels=pixels)
    assert model(torch.zeros(2, 1, pixels, pixels)).shape == (2, 7)


@pytest.mark.parametrize("training", [True, False])
def test_gpt_does_not_see_the_future(training):
    model = GPT(vocabulary=11, context=8, width=16, depth=2, heads=2).train(training)
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5:] = 9
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_building_a_model_depends_on_the_seed_alone_and_leaves_the_global_generator():
    task = Digits(**TINY_IMAGES)
    state = torch.get_rng_state()
    first = [p.clone() for p in task.build_model(3).parameters()]
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    assert all(torch.equal(a, b) for a, b in zip(first, task.build_model(3).parameters(), strict=True))
    assert not torch.equal(first[0], next(task.build_model(4).parameters()))


# loaders


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_round_trip(tmp_path, zipped):
    train, held_out = Mnist(folder=write_idx(tmp_path, zipped=zipped), **TINY_IMAGES).splits
    images, labels = labelled(320, (28, 28), 10)
    assert torch.equal(train.images, torch.from_numpy(images)[:, None])
    assert torch.equal(train.labels, torch.from_numpy(labels).long())
    assert len(held_out.labels) == 40


def test_cifar10_round_trips_through_its_five_files(tmp_path):
    train, held_out = Cifar10(folder=write_cifar10(tmp_path), **TINY_IMAGES).splits
    images, labels = labelled(360, (3, 32, 32), 10)
    assert torch.equal(torch.cat([train.images, held_out.images]), torch.from_numpy(images))
    assert torch.equal(torch.cat([train.labels, held_out.labels]), torch.from_numpy(labels).long())


def test_cifar100_gives_the_fine_labels(tmp_path):
    train, held_out = Cifar100(folder=write_cifar100(tmp_path), **TINY_IMAGES).splits
    assert torch.equal(torch.cat([train.labels, held_out.labels]), torch.arange(300) % 100)
    assert train.images.shape == (200, 3, 32, 32)


def test_text_files_are_joined_by_name_and_split_at_the_end(tmp_path):
    corpus = TextFiles(folder=write_text(tmp_path), **TINY_TEXT).corpus
    text = b"that is the question\n" * 100 + b"to be or not to be\n" * 100
    assert bytes(corpus.train.tolist() + corpus.held_out.tolist()) == text
    assert len(corpus.held_out) == len(text) // 20
    assert (corpus.train.dtype, corpus.vocabulary) == (torch.uint8, 256)


def test_max_bytes_caps_the_text(tmp_path):
    corpus = TextFiles(folder=write_text(tmp_path), max_bytes=1000, **TINY_TEXT).corpus
    assert len(corpus.train) + len(corpus.held_out) == 1000


def test_penn_treebank_numbers_words_and_maps_new_ones_to_unk(tmp_path):
    corpus = PennTreebank(folder=write_ptb(tmp_path), **TINY_TEXT).corpus
    assert corpus.vocabulary == 7
    assert corpus.train[:8].tolist() == [2, 3, 0, 4, 5, 2, 6, 1]
    assert corpus.held_out[:7].tolist() == [2, 0, 4, 5, 2, 6, 1]


def test_the_standard_library_is_there_and_capped():
    corpus = LanguageModel(**TINY_TEXT).corpus
    assert 1_000_000 < len(corpus.train) <= 8_000_000
    assert len(corpus.held_out) > 100_000
    assert b"def " in bytes(corpus.held_out.numpy())


def test_sources_are_split_by_file_without_installed_packages_and_tests(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    for folder in ("site-packages/other", "test", "email"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "module.py").write_text(folder[0])
    for number in range(40):
        (tmp_path / f"module{number:02}.py").write_text(chr(ord("A") + number))
    corpus = python_sources.__wrapped__(1000)
    # email/module.py comes first in the order of paths
    assert bytes(corpus.held_out.tolist()) == b"eT" + b"h"
    assert len(corpus.train) == 38


def test_a_python_without_sources_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match=r"no \.py files in"):
        python_sources.__wrapped__(1000)


def test_digits_has_no_sample_on_both_sides():
    train, held_out = Digits(**TINY_IMAGES).splits
    assert (len(train.labels), len(held_out.labels)) == (1437, 360)
    assert not {bytes(i.numpy()) for i in train.images} & {bytes(i.numpy()) for i in held_out.images}


@pytest.mark.skipif(not FashionMnist.folder.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_debians_fashion_mnist_is_read():
    train, held_out = FashionMnist().splits
    assert train.images.shape == (60_000, 1, 28, 28)
    assert torch.bincount(train.labels).tolist() == [6000] * 10
    assert torch.bincount(held_out.labels).tolist() == [1000] * 10


# sharding


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_share_no_sample_in_an_epoch(world):
    parts = [epoch(torch.Generator().manual_seed(7), 100, 5, rank, world) for rank in range(world)]
    seen = torch.cat(parts).flatten()
    assert len(seen) == len(seen.unique()) == 100 // (5 * world) * 5 * world


def test_the_samples_of_a_step_do_not_depend_on_how_many_ranks_share_them():
    one = epoch(torch.Generator().manual_seed(7), 100, 12, 0, 1)
    three = torch.cat([epoch(torch.Generator().manual_seed(7), 100, 4, rank, 3) for rank in range(3)], 1)
    assert torch.equal(one, three)


def test_image_batches_are_disjoint_between_ranks_and_deterministic(tmp_path):
    task = Mnist(folder=write_idx(tmp_path), **TINY_IMAGES)

    def numbers(rank: int, seed: int) -> list[tuple[float, float]]:
        batches = islice(task.batches(rank, 2, seed), 10)
        return [(x[0, 0, 0].item(), x[0, 0, 1].item()) for inputs, _ in batches for x in inputs]

    assert len(set(numbers(0, 1)) | set(numbers(1, 1))) == 320
    assert numbers(0, 1) == numbers(0, 1) != numbers(0, 2)


def test_text_batches_are_disjoint_between_ranks_deterministic_and_shifted_by_one(tmp_path):
    words = " ".join(f"w{number}" for number in range(1000))
    for split in ("train", "valid"):
        (tmp_path / f"ptb.{split}.txt").write_text(words)
    task = PennTreebank(folder=tmp_path, **TINY_TEXT)

    def tokens(rank: int, seed: int) -> list[int]:
        batches = list(islice(task.batches(rank, 2, seed), 3))
        assert all(torch.equal(y, x + 1) for x, y in batches)
        return torch.cat([x for x, _ in batches]).flatten().tolist()

    assert len(set(tokens(0, 1)) | set(tokens(1, 1))) == 2 * 3 * 8 * 16
    assert tokens(0, 1) == tokens(0, 1) != tokens(0, 2)


def test_epochs_go_on_and_differ():
    batches = Digits(**(TINY_IMAGES | {"batch": 1437})).batches(0, 1, 0)
    (_, first), (_, second) = next(batches), next(batches)
    assert torch.equal(first.bincount(), second.bincount())
    assert not torch.equal(first, second)


# learning


def tiny_tasks(folder: Path):
    for part in ("text", "ptb", "idx", "cifar10", "cifar100"):
        (folder / part).mkdir()
    return [
        LanguageModel(**TINY_TEXT),
        LanguageModel(**TINY_TEXT, model="lstm"),
        TextFiles(folder=write_text(folder / "text"), **TINY_TEXT),
        PennTreebank(folder=write_ptb(folder / "ptb"), **TINY_TEXT),
        Digits(**TINY_IMAGES),
        Digits(**(TINY_IMAGES | {"model": "vgg16"})),
        Mnist(folder=write_idx(folder / "idx"), **(TINY_IMAGES | {"model": "resnet18"})),
        Cifar10(folder=write_cifar10(folder / "cifar10"), **TINY_IMAGES),
        Cifar100(folder=write_cifar100(folder / "cifar100"), **(TINY_IMAGES | {"width": 8})),
    ]


@pytest.mark.long
def test_every_task_learns_in_sixty_steps(tmp_path):
    for task in tiny_tasks(tmp_path):
        model, batches = task.build_model(0), task.batches(0, 1, 0)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = []
        for inputs, targets in islice(batches, 60):
            loss = task.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) < 0.95 * sum(losses[:5]), task
        assert task.metric in task.evaluate(model), task


def test_evaluation_repeats_and_leaves_the_model_as_it_was():
    task = Digits(**TINY_IMAGES)
    model = task.build_model(0)
    model[1].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    figures = task.evaluate(model)
    assert figures == task.evaluate(model)
    assert 0 <= figures["accuracy"] <= 1
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_evaluation_is_the_mean_over_all_held_out_samples():
    task = Digits(**TINY_IMAGES)
    model = task.build_model(0)
    figures = task.evaluate(model)
    inputs, targets = task.held_out_batch(torch.arange(task.held_out_size))
    with torch.no_grad():
        logits = model.eval()(inputs)
    assert figures["loss"] == pytest.approx(task.loss(logits, targets).item(), rel=1e-5)
    assert figures["accuracy"] == pytest.approx((logits.argmax(1) == targets).float().mean().item())


# mistakes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LanguageModel(model="rnn"), "there is no model of lm named 'rnn': there are gpt, lstm, published-"),
        (lambda: LanguageModel(width=30, heads=4), "width must be a multiple of heads"),
        (lambda: LanguageModel(batch=0), "batch must be at least 1, got 0"),
        (lambda: LanguageModel(context=3000, max_bytes=4000), "too short for a context of 3000: 4000 tokens"),
        (
            lambda: Digits(model="gpt"),
            "there is no model of digits named 'gpt': there are cnn, lenet, vgg16, resnet18, published-",
        ),
        (lambda: Synthetic(model="cnn"), "model must be vgg16, resnet18, lstm or gpt, got cnn"),
        (lambda: next(Digits(batch=800).batches(0, 2, 0)), "do not fill one step of 2 x 800"),
    ],
)
def test_a_wrong_size_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "file"),
    [
        (TextFiles, "*.txt"),
        (PennTreebank, "ptb.train.txt"),
        (Mnist, "train-images-idx3-ubyte"),
        (Cifar10, "data_batch_1.bin"),
        (Cifar100, "train.bin"),
    ],
)
@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_a_missing_file_is_named(tmp_path, task, file, folder):
    with pytest.raises(ValueError, match="no file") as caught:
        task(folder=tmp_path / folder)
    assert str(tmp_path / folder / file) in str(caught.value)


@pytest.mark.parametrize(
    ("task", "name", "files"), [(Cifar10, "data_batch_1", "cifar10"), (Cifar100, "train", "cifar100")]
)
def test_the_pickled_cifar_is_not_read(tmp_path, task, name, files):
    (tmp_path / name).write_bytes(b"\x80\x04}.")
    with pytest.raises(ValueError, match=f"pickles are not read; `gradwire download {files}`"):
        task(folder=tmp_path)


def test_a_short_cifar_file_is_refused(tmp_path):
    path = write_cifar10(tmp_path) / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin holds 184379 bytes, not whole records of 3073"):
        Cifar10(folder=tmp_path)


def test_a_short_idx_file_is_refused(tmp_path):
    path = write_idx(tmp_path) / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="holds 31375 bytes where its header says 31376"):
        Mnist(folder=tmp_path)


def test_a_short_gz_file_is_refused(tmp_path):
    path = write_idx(tmp_path, zipped=True) / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte\.gz cannot be unpacked"):
        Mnist(folder=tmp_path)


def test_a_file_that_is_not_idx_is_refused(tmp_path):
    write_idx(tmp_path).joinpath("train-images-idx3-ubyte").write_bytes(b"\x89PNG, not an image set")
    with pytest.raises(ValueError, match="train-images-idx3-ubyte is not an IDX file"):
        Mnist(folder=tmp_path)


def test_images_and_labels_must_be_as_many(tmp_path):
    write_idx(tmp_path).joinpath("train-labels-idx1-ubyte").write_bytes(idx_bytes(numpy.zeros(5)))
    with pytest.raises(ValueError, match="has 320 train images but 5 train labels"):
        Mnist(folder=tmp_path)


def test_a_label_beyond_the_classes_is_refused(tmp_path):
    write_idx(tmp_path).joinpath("t10k-labels-idx1-ubyte").write_bytes(idx_bytes(numpy.full(40, 10)))
    with pytest.raises(ValueError, match="mnist has labels 0 to 9, the files hold 10"):
        Mnist(folder=tmp_path)
