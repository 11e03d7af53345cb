"""Names and defaults on the command line; nothing here loads torch. First names of configurations that are no
compressors, and of their parts; then those of tables in other modules, which a test compares; last those that packages
export."""

import ast
from functools import cache
from pathlib import Path

import gradwire

DENSE, DDP = "dense", "ddp"
NOCOMM = "nocomm"
AUTO = "auto"
LOCAL = "localsteps"
PLAN = "plan:"
PLANNED = "planned"
TINY = "tiny-"
"""Before the name of a synthetic model."""

TASKS = (
    "lm", "text", "ptb", "wikitext", "masked", "squad", "digits", "mnist", "fashion-mnist", "cifar10", "cifar100",
    "images", "synthetic", "published", "own",
)  # fmt: skip
MODELS = (
    "resnet18", "resnet50", "resnet101", "resnet152", "cifar-resnet18", "cifar-resnet50", "cifar-resnet101",
    "cifar-resnet152", "vgg16", "vgg16-bn", "vgg19", "vit-base", "vit-large", "bert-base", "bert-large", "gpt2",
    "gpt2-large", "lstm", "tiny-vgg16", "tiny-resnet18", "tiny-lstm", "tiny-gpt",
)  # fmt: skip
PRESETS = (
    "cupcake-resnet50-cifar10", "cupcake-resnet101-cifar10", "cupcake-resnet50-imagenet", "cupcake-resnet101-imagenet",
    "cupcake-bert-base-squad", "gravac-resnet101", "gravac-vgg16", "gravac-lstm", "adtopk-resnet152-imagenet",
    "adtopk-vit-large-imagenet", "adtopk-bert-large-squad", "adtopk-gpt2-large-wikitext", "adtopk-vgg16-cifar100",
    "adtopk-resnet50-cifar100", "adtopk-lstm-wikitext", "acpsgd-resnet50-imagenet", "acpsgd-resnet152-imagenet",
    "acpsgd-resnet18-cifar10", "acpsgd-vgg16-cifar10", "acpsgd-bert-base", "acpsgd-bert-large", "acpsgd-mnist",
)  # fmt: skip
SUITES = ("cupcake", "acpsgd", "adtopk", "gravac")
HOOKS = ("torch-bf16", "torch-fp16", "torch-powersgd")
KINDS = (
    "baselines", "compressors", "memories", "communicators", "controllers", "rounds", "hooks", "tasks", "models",
    "presets", "suites",
)  # fmt: skip
"""Of the catalogue."""
DEVICES = ("cpu", "cuda")
MOST = 10**12
"""Steps, samples, ranks and the like that an option takes, at most."""
TIMED_STEPS, TURNS = 20, 3
"""The steps that a timing takes by default: in a turn of each configuration, and how many turns each gets."""


def check_device(name: str) -> None:
    """Raises ValueError for an unknown type of device."""
    if name not in DEVICES:
        raise ValueError(f"device is {' or '.join(DEVICES)}, not {name!r}")


_BASES = {
    "cast", "check_numbers", "codec", "common", "communicator", "compressor", "context_for", "controller",
    "decision", "doublebuffer", "estimatedthreshold", "fixedsizecompressor", "groupcontext", "groupstate",
    "groupview", "lowrank", "memory", "message_numbers", "multiround", "nativerequest", "observation", "parts",
    "profilerequest", "reducecodec", "reduction", "selective", "simplecodec", "slotstate", "sparse", "sparsifier",
    "stepview", "thresholded", "wire",
}  # fmt: skip
"""Exports that configurations may not use: base classes, and helpers for parts of one's own."""


PARTNERS = ("memories", "communicators", "controllers")
"""Packages whose parts may follow a compressor, each after a +."""


@cache
def exported_names(*packages: str) -> list[str]:
    """The names that configurations may use of these packages of Gradwire, in lower case, read from their sources."""
    sources = [Path(gradwire.__file__).with_name(package) / "__init__.py" for package in packages]
    nodes = [node for source in sources for node in ast.parse(source.read_text()).body if isinstance(node, ast.Assign)]
    names = [name.lower() for node in nodes for name in ast.literal_eval(node.value)]
    return [name for name in dict.fromkeys(names) if name not in _BASES]
