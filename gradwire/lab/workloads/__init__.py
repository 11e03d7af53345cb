"""Workloads on real data that needs no download, on data sets the user has, and on random data."""

from gradwire.lab.workloads.images import Cifar10, Cifar100, Digits, FashionMnist, ImageFolder, Mnist
from gradwire.lab.workloads.language import LanguageModel, PennTreebank, TextFiles, WikiText
from gradwire.lab.workloads.masked import Masked
from gradwire.lab.workloads.own import UserModel
from gradwire.lab.workloads.published import Published
from gradwire.lab.workloads.squad import Squad
from gradwire.lab.workloads.synthetic import Synthetic
from gradwire.lab.workloads.task import Task

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        LanguageModel, TextFiles, PennTreebank, WikiText, Masked, Squad, Digits, Mnist, FashionMnist, Cifar10, Cifar100,
        ImageFolder, Synthetic, Published, UserModel,
    )
}  # fmt: skip
"""Every task that can be made, by name."""
