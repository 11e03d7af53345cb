"""Weights of the ranks' gradients in a step's mean, such as the numbers of their samples."""

from collections.abc import Callable
from math import isfinite
from numbers import Real

import torch
from torch import Tensor

from gradwire.ops.host import number_in
from gradwire.ops.vectors import Scalar
from gradwire.runtime.failures.first_error import FirstError
from gradwire.runtime.steps.pipeline import Pipeline
from gradwire.runtime.worker.executor import Executor
from gradwire.transports.mesh import SAME

CALL = "return the number of this rank's samples, 0 or more"


def checked(weight: object) -> Scalar:
    """A user's weight, a number, or a tensor () on a GPU. Raises ValueError for any other; a GPU's is not read, and
    with NaN no rank takes the step."""
    if isinstance(weight, Tensor) and weight.numel() == 1:
        weight = number_in(weight.detach().reshape(()))
    match weight:
        case Tensor() if not weight.dim():  # on a GPU
            return weight
        case Real() if isfinite(number := float(weight)) and number >= 0:  # numpy's too
            return number
        case other:
            raise ValueError(f"{other!r} is no weight of a gradient; {CALL}")


def weight_reader(weight: Callable[[], object] | None, first_error: FirstError) -> Callable[[], Scalar | None]:
    """A function that asks for this rank's weight in the step that opens; a mistake ends the job on all ranks."""
    if weight is None:
        return lambda: None

    def ask() -> Scalar:
        with first_error.fail_job_on(Exception):
            return checked(weight())

    return ask


class Weights:
    """Weights of a step: their sum over all ranks is agreed when the step begins, before anything is encoded."""

    share: Scalar | None = None
    """This rank's part of the step's mean: its weight over that sum, or 0 where the sum is. None where all ranks have
    the same."""

    def __init__(self, pipeline: Pipeline, executor: Executor) -> None:
        self._pipeline, self._executor = pipeline, executor
        # kept for all steps: recorded kernels read the share where it lies
        self._own, self._sum, self._share = torch.zeros(3, dtype=torch.float32, device=executor.device).split(1)

    def agree(self, weight: Scalar | None) -> None:
        """Takes this rank's weight in the step that begins; all ranks call this together, on the worker. Ranks that
        hold a replica together have one weight, the sum of theirs."""
        if weight is None:
            return
        # a number on a GPU, whose memory is kept until the worker's stream has read it
        if isinstance(weight, Tensor):
            self._executor.keep([weight])
            self._own.copy_(weight)
        else:
            self._own.fill_(weight)
        # the replica's, then all replicas'
        self._pipeline.sum(self._own, self._pipeline.mesh.divided)
        self._sum.copy_(self._own)
        self._pipeline.sum(self._sum, SAME)
        # the share; 0 where all weights are 0
        torch.div(self._own, self._sum.clamp_min_(torch.finfo(torch.float32).tiny), out=self._share)
        self.share = number_in(self._share[0])
