"""Owners of parameters. A parameter belongs to one job at a time, which averages its gradients: a second one would
compress means. Before any optimizer steps a parameter, its job checks that the step's means have all come."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.fused import skip_no_more, skip_where
from gradwire.torch_private.reducer import averaged_over

_JOBS: list[weakref.ref[Runtime]] = []
"""The jobs that own parameters, each of which keeps its own: weak references to parameters would keep torch from moving
them. It is a list, which one thread can copy while another adds to it."""


def check_free(parameters: Mapping[str, Tensor], beside: str = "") -> None:
    """Raises ValueError, naming the call that works, for a parameter that an attached job averages already, unless that
    job is of the kind `beside`."""
    for name, parameter in parameters.items():
        if (kind := _owner(parameter)) and kind != beside:
            raise ValueError(
                f"parameter {name!r} is averaged by {kind} already; call detach() of its handle first, or where a "
                "model has several optimizers, wrap each of them with parameters of its own"
            )


def held_by(optimizer: Optimizer) -> Iterable[nn.Parameter]:
    """The parameters that an optimizer steps."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def check_alone(job: Runtime) -> None:
    """Ends the job where this is inside of a forward pass of DDP's, which averages its gradients as well."""
    if averaged_over(job.owned) > 1:
        job.refuse(
            "DistributedDataParallel averages the gradients of this model as well; train the model outside of it, or "
            "use gw.attach(ddp, gw.TopK(0.01)) instead"
        )


def is_owned(parameter: Tensor) -> bool:
    """Whether a job averages it, and was not detached."""
    return _owner(parameter) is not None


def _owner(parameter: Tensor) -> str | None:
    return next((kind for job in _jobs() if (kind := job.owned.get(parameter))), None)


def _jobs() -> list[Runtime]:
    # a job that was closed, or collected with its model, owns nothing any more
    return [job for each in list(_JOBS) if (job := each()) and not job.closed]


def claim(parameters: Iterable[Tensor], runtime: Runtime, kind: str) -> None:
    """Claims parameters for the job of `runtime`, until it is closed or gone; users call it `kind`."""
    if (job := weakref.ref(runtime, _JOBS.remove)) not in _JOBS:
        _JOBS.append(job)
    _guard_optimizers()
    claimed = dict.fromkeys(parameters, kind)
    # an earlier DDP of the same model loses them. Dictionaries are replaced: other threads may go through them
    for each in _jobs():
        if each is not runtime and not claimed.keys().isdisjoint(each.owned):
            each.owned = {parameter: kind for parameter, kind in each.owned.items() if parameter not in claimed}
    runtime.owned = runtime.owned | claimed


@cache
def _guard_optimizers() -> None:
    """Hooks all optimizers, of any class, so that none steps by gradients that are incomplete, as a rank was lost."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(lambda optimizer, arguments, options: skip_no_more(optimizer))


def _before_step(optimizer: Optimizer, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    flags = list[Callable[[], Tensor]]()
    for job in [job for job in _jobs() if job.error or not job.is_immediate]:
        if any(parameter in job.owned for parameter in held_by(optimizer)):
            # the job has failed, and this rank has not all of the step: its error
            job.check_whole()
            # on a GPU the kernels may be queued before that is known
            if not job.is_immediate:
                flags.append(job.found_abort)
    if flags:
        skip_where(optimizer, flags)
