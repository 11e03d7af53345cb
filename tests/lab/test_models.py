"""The published models: their sizes, their data, and what may be cut from them."""

import pytest
import torch

from gradwire.lab.models import MODELS, hub
from gradwire.lab.workloads import Published

BY_TRANSFORMERS = {name for name, model in MODELS.items() if model.by_transformers}
SMALL = {"images": 32, "text": 8, "pairs": 8}


def on_meta(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return Published(model=name)._module()


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_as_many_as_published(name: str) -> None:
    assert Published(model=name).parameters() == MODELS[name].parameters


@pytest.mark.parametrize(("name", "parameters"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_bert_without_its_heads_is_the_one_of_the_paper(name: str, parameters: int) -> None:
    assert count(on_meta(name).model.bert) == parameters


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16", "vit-base", "bert-base", "gpt2", "lstm"])
def test_as_few_layers_as_can_be_take_the_real_data(name: str) -> None:
    fewest = len(MODELS[name].stages)
    task = Published(model=name, layers=fewest, batch=2, size=SMALL[MODELS[name].data])
    inputs, targets = next(task.batches(0, 2, 0))
    # GPT-2 looks at its positions, which have no values on the meta device
    device = torch.device("cpu" if name.startswith("gpt2") else "meta")
    with device:
        model = task._module()
    assert count(model) < MODELS[name].parameters
    with torch.no_grad():
        logits = model(inputs.to(device))
    assert logits.shape == (*targets.shape, MODELS[name].outputs)


@pytest.mark.parametrize("name", ["resnet18", "bert-base"])
def test_a_loss_reaches_every_parameter(name: str) -> None:
    task = Published(model=name, layers=len(MODELS[name].stages), batch=2, size=SMALL[MODELS[name].data])
    model = task.build_model(0)
    inputs, targets = next(task.batches(0, 2, 0))
    loss = task.loss(model(inputs), targets)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_published_batches_have_the_published_shapes_and_differ_between_ranks() -> None:
    task = Published(model="resnet50")
    (images, classes), (others, _) = next(task.batches(0, 2, 0)), next(task.batches(1, 2, 0))
    assert images.shape == (64, 3, 224, 224)
    assert classes.shape == (64,)
    assert not torch.equal(images, others)
    tokens, following = next(Published(model="lstm").batches(0, 2, 0))
    assert tokens.shape == (20, 35)
    assert torch.equal(tokens[:, 1:], following[:, :-1])
    pairs, targets = next(Published(model="bert-base").batches(0, 2, 0))
    assert (pairs.shape, targets.shape) == ((32, 64), (32, 65))
    assert targets[:, -1].max() < 2


def test_layers_are_cut_from_the_longest_stage() -> None:
    assert MODELS["resnet152"].stages == (3, 8, 36, 3)
    assert MODELS["resnet152"].cut(20) == (3, 7, 7, 3)
    assert MODELS["resnet152"].cut(50) == MODELS["resnet152"].stages
    assert MODELS["bert-large"].cut(2) == (2,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "bert"}, "there is no model 'bert': did you mean"),
        ({"model": "gpt2", "layers": 13}, "layers=13 cannot be had: there are 1 to 12"),
        ({"model": "resnet18", "layers": 3}, "there are 4 to 8"),
        ({"model": "vit-base", "size": 100}, "size=100 does not fit: it takes 16 to 1024 in steps of 16"),
        ({"model": "bert-base", "size": 1000}, "it takes 2 to 512"),
        ({"model": "vgg16", "batch": 0}, "batch must be at least 1"),
    ],
)
def test_what_a_model_cannot_be_is_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Published(**options)


def test_without_transformers_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"builds gpt2, is not installed: pip install 'gradwire\[models\]'"):
        Published(model="gpt2")
    Published(model="vgg16")
    assert MODELS.keys() - BY_TRANSFORMERS == {"vgg16", "vgg16-bn", "vgg19", "lstm"}
