"""Workloads on real data that needs no download, on data sets the user has, and on random data."""

from gradwire.lab.workloads.base import Batch, Task
from gradwire.lab.workloads.images import Cifar10, Cifar100, Digits, FashionMnist, ImageTask, Mnist
from gradwire.lab.workloads.language import LanguageModel, PennTreebank, TextFiles, TextTask
from gradwire.lab.workloads.published import Published
from gradwire.lab.workloads.synthetic import Synthetic

TASKS: tuple[type[Task], ...] = (
    LanguageModel,
    TextFiles,
    PennTreebank,
    Digits,
    Mnist,
    FashionMnist,
    Cifar10,
    Cifar100,
    Synthetic,
    Published,
)
"""Every task that can be made."""

__all__ = [
    "TASKS",
    "Batch",
    "Cifar10",
    "Cifar100",
    "Digits",
    "FashionMnist",
    "ImageTask",
    "LanguageModel",
    "Mnist",
    "PennTreebank",
    "Published",
    "Synthetic",
    "Task",
    "TextFiles",
    "TextTask",
]
