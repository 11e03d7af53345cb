"""The keyword arguments that users give to front ends."""

from collections.abc import Callable, Sequence
from typing import TypedDict

import torch
from torch import nn

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.controllers import Controller
from gradwire.frontends.options.given_rules import GivenRule
from gradwire.frontends.options.weighted import Weight
from gradwire.groups import Grouping
from gradwire.memories import Memory
from gradwire.plans import Group
from gradwire.transports import Mesh, Transport

Dense = Callable[[str, nn.Parameter], bool]


class PlanOptions(TypedDict, total=False):
    """Options of every front end."""

    memory: Memory | None
    """The memory, which keeps what was not sent; by default the one that suits the compressor."""
    communicator: Communicator | None
    """Which collectives carry the payloads; by default those that suit the compressor."""
    dense: Dense | None
    """`dense(name, parameter)`: whether a parameter travels uncompressed; by default those of fewer than two axes."""
    groups: Grouping | None
    """Which gradients travel together; by default some 8 groups of 8 MB or more, on a GPU some 4 of 32 MB or more."""
    rules: Sequence[GivenRule]
    """Pairs of a pattern of parameters and a way to send them, of which the first that matches counts; what none
    matches is sent by `compressor`. A list of ways, or "auto", leaves the choice to the automatic plan."""
    transport: Transport | Mesh | None
    """Carries the collectives of this job alone; by default a process group of its own. One is for one job at a time:
    another gets another, or comes after `detach()`. Gradwire does not close yours, but an error ends its group: give it
    one that nothing else uses."""
    seed: int
    """Starts all randomness but the first bases of PowerSGD, ACPSGD and Dion, which follow from parameters' names."""
    weight: Weight | None
    """This rank's weight in each step's mean, such as the number of its samples: a number, a tensor () that is read at
    every step, or a function that is called then. By default all ranks have the same."""


class AttachOptions(PlanOptions, total=False):
    """Options of `attach` and `DistributedOptimizer`, which reduce every step."""

    candidates: Sequence[Compressor | Group]
    """The compressors among which the automatic plan chooses, where none is named."""
    fidelity: float | None
    """The fraction of dense steps' progress that the automatic plan may lose, such as 0.01."""
    controller: Controller | None
    """Changes the plan while training."""
    find_unused_parameters: bool
    """Some parameters may get no gradient. Every backward pass is then a step of all optimizers of a model that have
    this, with whatever parameters it comes to on each rank; pass each of them the same model."""
    scaler: torch.amp.GradScaler | None
    """Multiplies losses; memories hold gradients without its factor, which may change."""
    rows: Compressor | str | None
    """How rows of Embedding(sparse=True) are sent: by default as they are; or `Quantized`, or text that names a memory
    as well, such as "quantized:4+residual"."""
    elastic: bool
    """Ranks may be lost, and come, while training goes on: see `gradwire.Rendezvous`."""
