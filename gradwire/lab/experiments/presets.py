"""Presets: the trainings of the four published systems, by name.

Ranks are those of the command; a rate that grew with their number there does so here. Where a paper is
silent the usual is assumed, which `assumed` names.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.experiments.training import Training
from gradwire.unknown import unknown

_IMAGES = {
    "images": "train/CLASS/*.JPEG and val/CLASS/*.JPEG",
    "cifar10": "data_batch_1.bin to data_batch_5.bin, test_batch.bin",
    "cifar100": "train.bin, test.bin",
}
_PTB = "ptb.train.txt, ptb.valid.txt"
_WIKITEXT = "wiki.train.tokens and wiki.valid.tokens, or with .raw"
_SQUAD = "train-v1.1.json, dev-v1.1.json"
_MNIST = "train-images-idx3-ubyte and the other three, plain or .gz"


def preset(name: str) -> Training:
    """The preset of this name. Raises ValueError for an unknown one."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def adaptive(sparsifiers: Sequence[str], window: int, interval: int) -> tuple[str, ...]:
    """Configurations of GraVAC's comparison: dense, the sparsifiers by factors of 10, 100 and 1000, Accordion with
    PowerSGD of rank 4 and 1, and controllers of the first sparsifier between 10 and 1000."""
    static = [f"{sparsifier}:{1 / factor:g}" for sparsifier, factor in product(sparsifiers, (10, 100, 1000))]
    first, often = sparsifiers[0], f"interval={interval}"
    controlled = [f"powersgd:4+accordion:4,1,{often}", f"{first}:0.1+accordion:0.1,0.01,{often}"]
    controlled += [f"{first}:0.01+lgreco:{often}", f"{first}:0.1+gravac:10,1000,window={window}"]
    return "dense", *static, *controlled


def _images(
    task: str, model: str, batch: int, recipe: Recipe, configurations: Iterable[str], **others: Any
) -> Training:
    options = (f"model=published-{model}", f"batch={batch}", "augment=true", *others.pop("options", ()))
    return Training(
        task=task, options=options, recipe=recipe, configurations=tuple(configurations), files=_IMAGES[task], **others
    )


_CUPCAKE = ("dense", "randomk:0.01+residual", "dgc:0.01+residual", "efsignsgd", "onebit")
_CUPCAKE += tuple(f"efsignsgd@{groups}" for groups in ("0mb", 1, 4, "25mb", "planned"))
_CUPCAKE_CIFAR = Recipe(epochs=200, optimizer="sgd", lr=0.0025, weight_decay=5e-4, schedule="cosine")
_CUPCAKE_IMAGENET = Recipe(
    epochs=120, optimizer="sgd", lr=0.0125, weight_decay=5e-4, schedule="drop:30,60,80", warm_up=5
)
_DROPS = "where the rate falls"
_FINE_TUNED: dict[str, Any] = {"assumed": "decay and how the rate falls", "from_weights": True}


def _cupcake() -> dict[str, Training]:
    """8 ranks of batch 32, or 1024 tokens (Wang et al., MLSys 2023)."""
    bert = Recipe(epochs=2, optimizer="adamw", lr=3e-5, weight_decay=0.01, schedule="linear", warm_up=0.2)
    return {
        "resnet50-cifar10": _images(
            "cifar10", "cifar-resnet50", 32, _CUPCAKE_CIFAR, _CUPCAKE, rate_per_rank=True,
            published="8 ranks: top-1 93.6 % dense, 93.2 % DGC",
        ),
        "resnet101-cifar10": _images("cifar10", "cifar-resnet101", 32, _CUPCAKE_CIFAR, _CUPCAKE, rate_per_rank=True),
        "resnet50-imagenet": _images(
            "images", "resnet50", 32, _CUPCAKE_IMAGENET, _CUPCAKE, rate_per_rank=True, assumed=_DROPS
        ),
        "resnet101-imagenet": _images(
            "images", "resnet101", 32, _CUPCAKE_IMAGENET, _CUPCAKE, rate_per_rank=True, assumed=_DROPS,
            published="8 ranks: top-1 77.1 % dense, 76.7 % EFSignSGD",
        ),
        "bert-base-squad": Training(
            task="squad", options=("model=published-bert-base", "batch=8", "length=128"), recipe=bert,
            configurations=_CUPCAKE, files=_SQUAD, from_weights=True,
            published="8 ranks: F1 88.65 % dense, 88.6 % DGC, 88.4 % Random-k",
            assumed="1024 tokens as 8 windows; rate, decay and warm-up",
        ),
    }  # fmt: skip


def _gravac() -> dict[str, Training]:
    """32 ranks; windows of 500 steps; models with heads of 1000 classes. https://arxiv.org/abs/2305.12201"""
    sparsifiers = ("dgc", "topk", "redsync", "randomk")
    configurations = adaptive(sparsifiers, window=500, interval=500)

    def recipe(steps: int, weight_decay: float, schedule: str = "constant") -> Recipe:
        return Recipe(steps=steps, optimizer="sgd", lr=0.1, weight_decay=weight_decay, schedule=schedule)

    # its ResNet and VGG kept ImageNet's 1000 outputs on CIFAR
    head = ("outputs=1000",)
    return {
        "resnet101": _images(
            "cifar10", "resnet101", 32, recipe(42_000, 1e-4, "drop:9000,14000"), configurations, options=head,
            published="32 ranks: top-1 80.14 % Top-k 10x, 80.4 % DGC 10x, 80.2 % GraVAC",
        ),
        "vgg16": _images(
            "cifar100", "vgg16-bn", 32, recipe(9_000, 5e-4), configurations, options=head, metric="top5",
            published="32 ranks: top-5 91.2 % Top-k 10x, 90.8 % DGC 10x, 90.48 % GraVAC",
        ),
        "lstm": Training(
            task="ptb", options=("model=published-lstm", "context=35", "batch=20", "carry=true"),
            recipe=recipe(20_000, 1e-4),
            configurations=configurations, metric="perplexity", files=_PTB,
            published="32 ranks: perplexity 22.0 Top-k 10x, 21.67 DGC 10x, 21.25 GraVAC",
        ),
    }  # fmt: skip


_ADTOPK = ("dense", "interleaved", "interleaved@hybrid", "interleaved:second=reusedthreshold")
_ADTOPK += ("topk:0.01", "topk:0.01+oktopk")
_ADTOPK += tuple(f"{name}:0.01" for name in ("dgc", "gaussiank", "redsync", "sidco"))


def _adtopk() -> dict[str, Training]:
    """8 ranks; lengths, batches and rates of its scripts. https://doi.org/10.1145/3625549.3658678"""
    resnet = Recipe(epochs=80, optimizer="sgd", lr=0.0125, weight_decay=5e-5, schedule="drop:30,60,80", warm_up=5)
    vit = Recipe(epochs=80, optimizer="adamw", lr=5e-5, weight_decay=0.0, schedule="linear", warm_up=0)
    bert = Recipe(epochs=30, optimizer="adamw", lr=3e-5, weight_decay=0.01, schedule="linear", warm_up=3)
    gpt2 = Recipe(epochs=30, optimizer="adamw", lr=5e-5, weight_decay=0.0, schedule="linear", warm_up=0)
    lstm = Recipe(epochs=40, optimizer="sgd", lr=0.1, weight_decay=1e-4)
    as_resnet = "batch, rate and length, as ResNet-152's"
    # the extended version's models, three of them fine-tuned, and the conference's
    return {
        "resnet152-imagenet": _images("images", "resnet152", 32, resnet, _ADTOPK, rate_per_rank=True, assumed=_DROPS),
        "vit-large-imagenet": _images("images", "vit-large", 8, vit, _ADTOPK, **_FINE_TUNED),
        "bert-large-squad": Training(
            task="squad", options=("model=published-bert-large", "batch=4", "length=384"), recipe=bert,
            configurations=_ADTOPK, files=_SQUAD, **_FINE_TUNED,
        ),
        "gpt2-large-wikitext": Training(
            task="wikitext", recipe=gpt2, configurations=_ADTOPK, metric="perplexity", files=_WIKITEXT,
            options=("model=published-gpt2-large", "batch=2", "context=1024", "tokenizer=bpe:50257"),
            **_FINE_TUNED,
        ),
        "vgg16-cifar100": _images(
            "cifar100", "vgg16-bn", 32, resnet, _ADTOPK, rate_per_rank=True, assumed=f"the data; {as_resnet}"
        ),
        "resnet50-cifar100": _images(
            "cifar100", "cifar-resnet50", 32, resnet, _ADTOPK, rate_per_rank=True, assumed=as_resnet
        ),
        "lstm-wikitext": Training(
            task="wikitext", options=("model=published-lstm", "context=35", "batch=20", "carry=true"), recipe=lstm,
            configurations=_ADTOPK, metric="perplexity", files=_WIKITEXT, assumed="all but the text, WikiText-2",
        ),
    }  # fmt: skip


_STEP_TIMES = "all but batch and rank: step times on random data were published"


def _acpsgd() -> dict[str, Training]:
    """32 ranks. https://arxiv.org/abs/2306.08881"""

    def methods(rank: int) -> tuple[str, ...]:
        return "dense", f"powersgd:{rank}", f"acpsgd:{rank}"

    # by set: ImageNet, CIFAR, pre-training BERT, MNIST
    imagenet = Recipe(epochs=90, optimizer="sgd", lr=0.01, weight_decay=1e-4, schedule="drop:30,60,80", warm_up=5)
    cifar = Recipe(epochs=300, optimizer="sgd", lr=0.1, weight_decay=5e-4, schedule="drop:150,220", warm_up=5)
    bert = Recipe(epochs=40, optimizer="adamw", lr=1e-4, weight_decay=0.01, schedule="linear", warm_up=1)
    mnist = Recipe(epochs=10, optimizer="sgd", lr=0.01, momentum=0.5, warm_up=0)
    usual: dict[str, Any] = {"assumed": _STEP_TIMES}
    not_read: dict[str, Any] = {"assumed": "rate, decay and length: the paper's could not be read"}

    def pretrained(model: str, batch: int) -> Training:
        options = (f"model=published-{model}", f"batch={batch}", "length=64")
        return Training(
            task="masked", options=options, recipe=bert, configurations=methods(32), files=_WIKITEXT, **usual
        )

    return {
        "resnet50-imagenet": _images("images", "resnet50", 64, imagenet, methods(4), rate_per_rank=True, **usual),
        "resnet152-imagenet": _images("images", "resnet152", 32, imagenet, methods(4), rate_per_rank=True, **usual),
        "resnet18-cifar10": _images("cifar10", "cifar-resnet18", 128, cifar, methods(4), **not_read),
        "vgg16-cifar10": _images("cifar10", "vgg16-bn", 128, cifar, methods(4), **not_read),
        "bert-base": pretrained("bert-base", 32),
        "bert-large": pretrained("bert-large", 8),
        "mnist": Training(
            task="mnist", options=("model=lenet", "width=10", "batch=64"), recipe=mnist, configurations=methods(4),
            rate_per_rank=True, files=_MNIST,
        ),
    }  # fmt: skip


SYSTEMS: dict[str, dict[str, Training]] = {
    "cupcake": _cupcake(),
    "gravac": _gravac(),
    "adtopk": _adtopk(),
    "acpsgd": _acpsgd(),
}
"""Every system's trainings."""

PRESETS: dict[str, Training] = {
    f"{system}-{name}": training for system, own in SYSTEMS.items() for name, training in own.items()
}
"""All of them, by system and name."""
