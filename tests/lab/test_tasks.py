"""Tasks on real data: readers of the public layouts, augmentation, whole held-out sets, any model."""

import json
from itertools import islice, pairwise
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from gradwire.lab.models.lstm import carried, carry_on
from gradwire.lab.workloads import (
    Cifar10,
    Digits,
    ImageFolder,
    Masked,
    Mnist,
    PennTreebank,
    Squad,
    Synthetic,
    Task,
    UserModel,
    WikiText,
    squad_files,
)
from gradwire.lab.workloads.image_set import crop_and_flip
from gradwire.lab.workloads.task import IGNORED
from gradwire.lab.workloads.tokens import lines_of, tokenizer
from tests.support.small_files import (
    squad,
    write_cifar10,
    write_idx,
    write_image_folder,
    write_ptb,
    write_squad,
    write_wikitext,
)

BERT = {"model": "published-bert-base", "layers": 1, "width": 64, "batch": 4, "tokenizer": "bpe:300"}
OWN = """
import torch
def make():
    data = torch.arange(24.0).view(12, 2)
    def batches(rank, world):
        return torch.utils.data.DataLoader(data[rank::world], batch_size=2, shuffle=True)
    return torch.nn.Linear(2, 1), batches, lambda model, batch: model(batch).square().mean(), lambda: [data]
"""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def tasks(folder: Path) -> dict[str, Task]:
    """One of each kind, tiny."""
    for part in ("images", "cifar10", "ptb", "wikitext", "squad"):
        (folder / part).mkdir()
    (folder / "own.py").write_text(OWN)
    text = {"model": "lstm", "width": 16, "layers": 1, "context": 8, "batch": 4}
    return {
        "images": ImageFolder(
            folder=write_image_folder(folder / "images"), size=16, model="cnn", width=4, batch=3, augment=True
        ),
        "cifar10": Cifar10(folder=write_cifar10(folder / "cifar10"), model="cnn", width=4, augment=True),
        "ptb": PennTreebank(folder=write_ptb(folder / "ptb"), **text),
        "ptb, carried": PennTreebank(folder=folder / "ptb", carry=True, **text),
        "wikitext": WikiText(folder=write_wikitext(folder / "wikitext"), **text),
        "masked": Masked(folder=folder / "wikitext", length=16, **BERT),
        "squad": Squad(folder=write_squad(folder / "squad"), length=48, **BERT),
        "synthetic": Synthetic(model="lstm"),
        "own": UserModel(function=f"{folder / 'own.py'}:make"),
    }


def test_batches_from_any_step_on_are_those_of_the_whole_stream(tmp_path: Path) -> None:
    for name, task in tasks(tmp_path).items():
        whole = list(islice(task.batches(1, 2, 5), 7))
        from_there = list(islice(task.batches(1, 2, 5, start=4), 3))
        for expected, got in zip(whole[4:], from_there, strict=True):
            pairs = zip(expected, got, strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), name


def test_ranks_scores_add_up_to_the_whole_sets(tmp_path: Path) -> None:
    for name, task in tasks(tmp_path).items():
        model = task.build_model(0)
        alone = task.sums(model, whole=True)
        parts = [task.sums(model, rank, 3, whole=True) for rank in range(3)]
        assert [sum(part) for part in zip(*parts, strict=True)] == pytest.approx(alone), name
        assert set(task.evaluate(model, whole=True)) >= {task.metric}, name


def test_an_lstms_state_goes_along_from_window_to_window(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / f"ptb.{split}.txt").write_text(" ".join(f"w{number}" for number in range(300)))
    task = PennTreebank(folder=tmp_path, model="lstm", width=8, context=8, batch=3, carry=True)
    steps, model, seen = task.epoch_steps(2), task.build_model(0), set()
    for rank in range(2):
        batches = list(islice(task.batches(rank, 2, 0), steps + 1))
        for (_, targets), (inputs, _) in pairwise(batches[:steps]):
            assert torch.equal(targets[:, -1], inputs[:, 0])
        assert torch.equal(batches[0][0], batches[steps][0])  # the next epoch begins again
        seen |= {tuple(window.tolist()) for inputs, _ in batches[:steps] for window in inputs}
    assert len(seen) == 2 * steps * 3
    # window by window as all of them at once
    whole = torch.cat([inputs for inputs, _ in batches[:4]], 1)
    logits = torch.cat([model(inputs) for inputs, _ in batches[:4]], 1)
    model.carries = False
    torch.testing.assert_close(logits, model(whole))
    # to evaluate, from zero
    model.carries = True
    held_out = task.sums(model)
    carry_on(model, [torch.ones_like(part) for part in carried(model)])
    assert task.sums(model) == held_out
    assert all(part.eq(1).all() for part in carried(model))
    with pytest.raises(ValueError, match="carry=true is for an LSTM, not for gpt; use model=lstm"):
        PennTreebank(folder=tmp_path, carry=True)


def test_every_target_of_a_text_counts_once(tmp_path: Path) -> None:
    for length in (50, 57, 64, 65, 66):
        home = tmp_path / str(length)
        home.mkdir()
        for split in ("train", "valid"):
            (home / f"ptb.{split}.txt").write_text(" ".join(f"w{number}" for number in range(length)))
        task = PennTreebank(folder=home, model="lstm", width=8, context=8)
        inputs, targets = task.held_out_batch(torch.arange(task.held_out_size))
        assert inputs.shape == targets.shape
        assert torch.equal(targets[targets != IGNORED], task.corpus.held_out[1:].long())


def test_top_five_and_perplexity_are_what_they_are_called(tmp_path: Path) -> None:
    task = WikiText(folder=write_wikitext(tmp_path), model="lstm", width=16, context=8)
    model = task.build_model(0).eval()
    inputs, targets = task.held_out_batch(torch.arange(task.held_out_size))
    with torch.no_grad():
        logits = model(inputs).flatten(0, 1)
    counted = targets.flatten() != IGNORED
    order = logits[counted].argsort(1, descending=True)
    top5 = (order[:, :5] == targets.flatten()[counted, None]).any(1).float().mean()
    figures = task.evaluate(model)
    assert figures["top5"] == pytest.approx(top5.item())
    assert figures["perplexity"] == pytest.approx(numpy.exp(figures["loss"]))


# image folders


def test_an_image_folder_is_read_with_its_classes_in_order(tmp_path: Path) -> None:
    task = ImageFolder(folder=write_image_folder(tmp_path), size=16, model="cnn", width=4, batch=3)
    assert task.labels == 3
    images, labels = task.held_out_batch(torch.arange(task.held_out_size))
    assert images.shape == (6, 3, 16, 16)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.mean((2, 3)).argmax(1).tolist()[2:] == [1, 1, 2, 2]
    assert task.epoch_steps(2) == 4


def test_a_held_out_image_is_the_middle_at_the_right_scale(tmp_path: Path) -> None:
    pixels = numpy.zeros((64, 96, 3), numpy.uint8)
    pixels[:, 16:80] = 100
    pixels[4:60, 20:76] = 200
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / split / "a" / "x.png")
    task = ImageFolder(folder=tmp_path, size=28, model="cnn", width=4, batch=1)
    images, _ = task.held_out_batch(torch.arange(task.held_out_size))
    inside = images[0, :, 1:-1, 1:-1]  # Pillow's filter looks beyond the part that is cut out
    assert len(inside.flatten(1).unique(dim=1).T) == 1
    deviation, mean = torch.tensor([0.229, 0.224, 0.225]), torch.tensor([0.485, 0.456, 0.406])
    assert inside[:, 0, 0].tolist() == pytest.approx(((200 / 255 - mean) / deviation).tolist(), abs=1e-5)


def test_augmentation_moves_and_mirrors_and_nothing_else() -> None:
    images = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).repeat(64, 1, 1, 1)
    drawn = crop_and_flip(images, numpy.random.default_rng(0))
    padded = torch.nn.functional.pad(images[0, 0], (1,) * 4)
    windows = [padded[y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    possible = {bytes(w.numpy().tobytes()) for window in windows for w in (window, window.flip(1))}
    seen = {bytes(image.numpy().tobytes()) for image in drawn[:, 0]}
    assert seen <= possible
    assert len(seen) > 9


def test_augmentation_is_another_in_each_step_and_on_each_rank(tmp_path: Path) -> None:
    options = {"folder": write_image_folder(tmp_path), "size": 16, "model": "cnn", "width": 4, "batch": 24}
    first, again = islice(ImageFolder(**options, augment=True).batches(0, 1, 0), 2)
    plain = next(ImageFolder(**options).batches(0, 1, 0))
    assert torch.equal(first[1], plain[1])
    assert not torch.equal(first[0], plain[0])
    assert torch.equal(next(ImageFolder(**options, augment=True).batches(0, 1, 0))[0], first[0])
    ordered = [batch[0][batch[1].argsort(stable=True)] for batch in (first, again)]
    assert not torch.equal(*ordered)


# questions


def test_spans_are_the_answers(tmp_path: Path) -> None:
    task = Squad(folder=write_squad(tmp_path), length=32, **BERT)
    train, _ = task.windows
    questions = squad_files.questions(tmp_path / "train-v1.1.json")
    found = 0
    for number, question in enumerate(questions):
        for window in range(int(train.first[number]), int(train.first[number + 1])):
            begins, ends = train.spans[window].tolist()
            if ends:
                characters = train.offsets[window, begins, 0], train.offsets[window, ends, 1]
                assert question.context[slice(*characters)].strip() == question.answers[0][1]
                found += 1
    assert found >= len(questions)
    assert len(train.tokens) > len(questions)  # texts are longer than windows


@pytest.mark.parametrize(
    ("answer", "truths", "match", "f1"),
    [
        ("The mason, 7!", ["mason 7"], 1, 1),
        ("mason", ["a big mason", "nobody"], 0, 2 / 3),
        ("mason mason", ["mason"], 0, 2 / 3),
        ("", ["mason"], 0, 0),
        ("other", ["mason", "other"], 1, 1),
    ],
)
def test_answers_are_compared_as_squads_own_evaluation_does(answer: str, truths: list, match: float, f1: float) -> None:
    assert squad_files.exact_match(answer, truths) == match
    assert squad_files.f1(answer, truths) == pytest.approx(f1)


def test_a_model_that_points_at_the_answers_matches_all_of_them(tmp_path: Path) -> None:
    task = Squad(folder=write_squad(tmp_path), length=32, **BERT)
    _, held_out = task.windows

    class Knows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            windows = [(held_out.tokens == tokens).all(1).nonzero()[0, 0] for tokens in inputs[:, 0]]
            return (
                10 * torch.nn.functional.one_hot(held_out.spans[torch.stack(windows)].long(), inputs.shape[2]).float()
            )

    assert task.evaluate(Knows(), whole=True) == {"exact_match": 1, "f1": 1}


# tokens


def test_a_trained_tokenizer_gives_back_its_text_and_is_the_same_each_time(tmp_path: Path) -> None:
    path = write_wikitext(tmp_path) / "wiki.train.tokens"
    made = [tokenizer("bpe:300", lines_of(path)) for _ in range(3)]
    assert made[0].vocabulary == 300
    numbers = made[0].tokenize(path)
    assert all(numpy.array_equal(numbers, other.tokenize(path)) for other in made[1:])
    pieces = "".join(made[0].core.id_to_token(number) for number in numbers.tolist())
    assert pieces.replace("Ġ", " ").replace("Ċ", "\n") == path.read_text()


def test_what_a_tokenizer_made_is_kept_until_the_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"folder": write_wikitext(tmp_path), "tokenizer": "bpe:300", "context": 8, "width": 16, "heads": 2}
    first = WikiText(**options).corpus
    monkeypatch.setattr("gradwire.lab.workloads.text.tokens_of", None)  # nobody may ask for it again
    text_of = WikiText.corpus.fget.__globals__["text"]
    text_of.wikitext.cache_clear()
    again = WikiText(**options).corpus
    assert torch.equal(first.train, again.train)
    (tmp_path / "wiki.valid.tokens").write_text("Place 1 lies on river 2 . \n" * 5)
    text_of.wikitext.cache_clear()
    with pytest.raises(TypeError):
        WikiText(**options)


def test_masked_words_are_a_seventh_and_pairs_are_half(tmp_path: Path) -> None:
    task = Masked(folder=write_wikitext(tmp_path), length=32, **(BERT | {"batch": 30}))
    inputs, targets = map(torch.cat, zip(*islice(task.batches(0, 1, 0), 10), strict=True))
    guessed = targets[:, :-1] != IGNORED
    mask = tokenizer("bpe:300", lines_of(tmp_path / "wiki.train.tokens")).mask
    assert guessed.float().mean() == pytest.approx(0.15 * 29 / 32, rel=0.1)
    assert (inputs[guessed] == mask).float().mean() == pytest.approx(0.8, abs=0.05)
    assert (inputs == targets[:, :-1])[guessed].float().mean() == pytest.approx(0.1, abs=0.03)
    assert not (inputs[~guessed] == mask).any()
    assert targets[:, -1].float().mean() == pytest.approx(0.5, abs=0.1)


# models


@pytest.mark.parametrize(
    "model", ["published-vgg16", "published-vgg16-bn", "published-resnet50", "published-cifar-resnet50"]
)
@pytest.mark.parametrize("pixels", [8, 28, 40])
def test_published_models_are_built_for_any_image(tmp_path: Path, model: str, pixels: int) -> None:
    task = ImageFolder(folder=write_image_folder(tmp_path), size=pixels, model=model, width=4, layers=5, batch=3)
    images, labels = next(task.batches(0, 1, 0))
    built = task.build_model(0)
    assert built(images).shape == (3, 3)
    assert any("BatchNorm" in type(module).__name__ for module in built.modules()) == (model != "published-vgg16")
    assert torch.isfinite(task.training_loss(built, (images, labels)))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"model": "published-lstm", "width": 8}, torch.nn.Dropout),
        ({"model": "published-gpt2", "width": 64, "layers": 1}, torch.nn.Dropout),
    ],
)
def test_dropout_replaces_the_published_one(tmp_path: Path, options: dict, kind: type) -> None:
    for dropout in (None, 0.3):
        task = PennTreebank(folder=write_ptb(tmp_path), context=8, dropout=dropout, **options)
        shares = {module.p for module in task.build_model(0).modules() if isinstance(module, kind)}
        assert shares == ({0.3} if dropout else {0.65 if "lstm" in options["model"] else 0.1})


def test_any_model_of_transformers_is_built_for_the_data(tmp_path: Path) -> None:
    made = tasks(tmp_path)
    llama = (
        "hf:llama,hidden_size=32,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=2,intermediate_size=32"
    )
    text = PennTreebank(folder=tmp_path / "ptb", model=llama, context=8, batch=4)
    vit = "hf:vit,hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,patch_size=8"
    image = ImageFolder(folder=tmp_path / "images", size=16, model=vit, batch=3)
    distilbert = "hf:distilbert,dim=32,n_layers=1,n_heads=2,hidden_dim=32"
    answers = Squad(folder=tmp_path / "squad", model=distilbert, length=48, batch=4, tokenizer="bpe:300")
    for task in (text, image, answers):
        loss = task.training_loss(task.build_model(0), next(task.batches(0, 1, 0)))
        loss.backward()
        assert torch.isfinite(loss)
    assert made["ptb"].epoch_steps(1) == text.epoch_steps(1)


def test_weights_in_a_folder_are_the_ones_that_are_trained(tmp_path: Path) -> None:
    task = Squad(folder=write_squad(tmp_path), length=48, **BERT)
    model = task.build_model(3)
    model.model.save_pretrained(tmp_path / "weights", safe_serialization=True)
    loaded = Squad(
        folder=tmp_path, length=48, batch=4, tokenizer="bpe:300", pretrained=tmp_path / "weights"
    ).build_model(0)  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_a_pretrained_model_brings_its_tokenizer(tmp_path: Path) -> None:
    write_wikitext(tmp_path)
    options = {"folder": tmp_path, "context": 8, "batch": 4}
    made = WikiText(**options, tokenizer="bpe:280", model="hf:gpt2,n_embd=32,n_layer=1,n_head=1").build_model(1)
    made.model.save_pretrained(tmp_path / "weights")
    from transformers import PreTrainedTokenizerFast

    core = tokenizer("bpe:280", lines_of(tmp_path / "wiki.train.tokens")).core
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(tmp_path / "weights")
    task = WikiText(**options, pretrained=tmp_path / "weights")
    assert task.corpus.vocabulary == 280
    assert torch.equal(task.build_model(0).model.transformer.wte.weight, made.model.transformer.wte.weight)
    with pytest.raises(ValueError, match=r"the tokenizer has 300 words, the model in .* knows 280: take its own"):
        WikiText(**options, pretrained=tmp_path / "weights", tokenizer="bpe:300").build_model(0)


# mistakes


def broken_image(folder: Path) -> None:
    (write_image_folder(folder) / "train" / "n00" / "train_0.JPEG").write_bytes(b"no image")
    list(islice(ImageFolder(folder=folder, size=8, model="cnn", batch=24).batches(0, 1, 0), 1))


def alien_class(folder: Path) -> None:
    (write_image_folder(folder) / "val" / "other").mkdir()
    ImageFolder(folder=folder)


def unanswered(folder: Path) -> None:
    data = squad(range(3))
    data["data"][0]["paragraphs"][1]["qas"][0]["answers"] = []
    write_squad(folder).joinpath("dev-v1.1.json").write_text(json.dumps(data))
    Squad(folder=folder)


def no_squad(folder: Path) -> None:
    write_squad(folder).joinpath("dev-v1.1.json").write_text('{"data": [{}]}')
    Squad(folder=folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: ImageFolder(folder=folder), r"no folder .*/train: an image folder holds train/CLASS"),
        (broken_image, r"train_0\.JPEG cannot be read as an image"),
        (alien_class, r"val/other is a class that .*/train does not have"),
        (lambda folder: WikiText(folder=folder), r"no file .*/wiki\.train\.tokens \(nor \.raw\)"),
        (lambda folder: WikiText(folder=write_wikitext(folder), tokenizer="bpe:many"), "write bpe:WORDS with the size"),
        (lambda folder: WikiText(folder=write_wikitext(folder), tokenizer="nowhere"), "no tokenizer in nowhere"),
        (
            lambda folder: Masked(folder=write_wikitext(folder), tokenizer="words"),
            r"needs a tokenizer that has \[MASK\]",
        ),
        (lambda folder: Squad(folder=folder), r"no file .*/train-v1\.1\.json"),
        (unanswered, r"question without answer .*: SQuAD 1\.1 is read, not 2\.0"),
        (no_squad, r"dev-v1\.1\.json is no file of SQuAD 1\.1: KeyError"),
        (lambda folder: Squad(folder=write_squad(folder), length=8, tokenizer="bpe:300"), "leaves no room for text"),
        (lambda folder: Digits(model="hf:nope").build_model(0), "transformers has no model type 'nope'"),
        (lambda folder: Digits(model="hf:vit,hiden_size=3").build_model(0), "did you mean hidden_size"),
        (lambda folder: Digits(model="hf:vit,hidden_size=x").build_model(0), "takes a whole number, not 'x'"),
        (lambda folder: Digits(model="hf:gpt2").build_model(0), "cannot be built for images"),
        (lambda folder: Digits(model="hf:vit", layers=2), "says its sizes after a comma"),
        (
            lambda folder: Digits(pretrained=folder).build_model(0),
            "no weights in .*: config.json and model.safetensors",
        ),
        (lambda folder: Digits(dropout=0.1), "cnn has no option dropout: it is for published models"),
        (lambda folder: Digits(model="published-vgg16", dropout=1.0), "dropout=1.0 is not a share"),
        (lambda folder: Digits(model="lenet").build_model(0), "lenet takes images of at least 16 pixels"),
        (
            lambda folder: Mnist(folder=write_idx(folder), model="published-vit-base").build_model(0),
            "size=28 does not fit",
        ),
        (lambda folder: Synthetic().epoch_steps(2), "has no epochs: give --steps"),
    ],
)
def test_mistakes_get_one_line(tmp_path: Path, make, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)
