"""The front end without DDP: an optimizer whose parameters' gradients are reduced as backward makes them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Unpack

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gradwire.compressors import Compressor
from gradwire.frontends.handle import Handle
from gradwire.frontends.hooks.gradient_access import FullGradients
from gradwire.frontends.hooks.gradient_hooks import GradientHooks
from gradwire.frontends.hooks.sparse_gradients import sparse_in
from gradwire.frontends.options.choices import StepChoices
from gradwire.frontends.options.keywords import AttachOptions
from gradwire.frontends.options.parameters import device_of, slots_of
from gradwire.frontends.owners import check_free
from gradwire.frontends.trained import HeldParameters, TrainedParameters, add_to, check_held, on_one_device
from gradwire.frontends.updates import warn_of_momentum
from gradwire.frontends.values import share_values, values_of
from gradwire.frontends.wrapper import Wrapper
from gradwire.options import called_as
from gradwire.plans import Plan
from gradwire.torch_private.compiled import uncompiled
from gradwire.transports import ProcessGroup

KIND = "a DistributedOptimizer"


class DistributedOptimizer(Wrapper):
    """`optimizer`, with the gradients of its parameters, which are `model`'s, compressed and averaged over all ranks.

    Parameters that it does not hold are left alone, so a model may have several, each with its own; pass
    `find_unused_parameters=True` where a pass may come to some of them alone, or fail. Parameters may be added, and
    frozen and thawed between steps, on all ranks together: they are averaged while they need a gradient.
    After `loss.backward()` every `p.grad` is the mean, so that clipping, GradScaler and schedulers work as with
    one process. Parameters and buffers are rank 0's from the start. Accumulate gradients under `no_sync()`.
    The arguments are those of `gradwire.attach`, but `process_group` in place of `mesh`: the ranks among which
    gradients are averaged, by default all. `handle` is what `attach` returns.

    Gradients of `model`'s Embedding(sparse=True) stay sparse: their rows travel beside the plan, as they are or as
    `rows` says.

    Without `model`, parameters are called by the names that the optimizer was given, or by their places in it; no other
    can be added, and buffers, such as BatchNorm's, start as each rank has them.

    Raises ValueError for what `attach` refuses, and RuntimeError from backward where a parameter got no
    gradient on this rank, unless `find_unused_parameters`, and from `step` after `handle.detach()`.
    """

    @called_as("gw.DistributedOptimizer(optimizer, model, gw.TopK(0.01), memory=gw.Residual())")
    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module | None = None,
        compressor: Compressor | Plan | str | None = None,
        *,
        process_group: dist.ProcessGroup | None = None,
        **options: Unpack[AttachOptions],
    ) -> None:
        choices = StepChoices.of(compressor, ["process_group"], **options)
        choices.check()
        given = nn.Module() if model is None else uncompiled(model)
        self.check(optimizer, given, process_group, "use gw.attach(model, gw.PowerSGD(rank=16), mesh=mesh)")
        model = HeldParameters(optimizer) if model is None else given
        # all ranks: make a group, compare over the store, and only then take over rank 0's parameters. Where ranks
        # differ, all of them raise before any value was sent
        self._trained = trained = TrainedParameters(model, on_one_device(model), optimizer)
        check_held(optimizer, model)
        parameters = trained.parameters()
        check_free(trained.held())
        # open the group; with one rank nothing is sent
        values, device = values_of(model), device_of(parameters)
        mesh = choices.mesh(partial(ProcessGroup.own, process_group), device)
        find_unused = choices.find_unused_parameters
        sparse = sparse_in(model, trained.reducible)
        gradients = FullGradients({trained.reducible[name] for name in sparse})
        self._front_end = GradientHooks(trained.reducible, model, gradients, find_unused, process_group, trained)
        runtime = None
        if mesh.ranks == 1 and not choices.elastic:
            choices.close_own(mesh)
            choices.try_out(trained.reducible, trained=parameters.keys(), sparse=sparse)
        else:
            runtime = choices.runtime(
                "DistributedOptimizer", trained.reducible, slots_of(trained.reducible), mesh, trained=parameters.keys(),
                others=trained.others, values=values, sparse=sparse,
            )  # fmt: skip
            with ExitStack() as on_error:
                on_error.callback(runtime.close)
                share_values(model, mesh, device)
                warn_of_momentum(runtime.plan, trained.reducible, optimizer)
                on_error.pop_all()
            self._front_end.hook_in(runtime)
            self._front_end.claim(trained.held().values(), KIND)
        self.handle = Handle(runtime, self._front_end)
        self._wrap(optimizer)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The wrapped optimizer's step. Raises RuntimeError where `handle` was detached, and for a parameter that was
        not averaged. What you put into `p.grad` yourself, such as a result of `torch.autograd.grad`, stays this rank's
        own, unnoticed."""
        if self._front_end.detached:
            raise RuntimeError("detach() ended the exchange of gradients; wrap the optimizer anew, or the model in DDP")
        self._front_end.check_averaged()
        return self._wrapped.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients. A step whose backward pass failed is given up, for the other ranks wait for it."""
        self._front_end.gradients_cleared()
        super().zero_grad(set_to_none)

    def skip(self) -> None:
        """In place of `step()`: takes back the last backward pass on all ranks, as `handle.skip()` does."""
        self.handle.skip()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters to the wrapped optimizer, to be averaged from the next step on. Raises ValueError for one
        that is not the model's, and for one that is averaged already."""
        if self.inner is None:  # while this object is made
            super().add_param_group(param_group)
            return
        self._front_end.claim(add_to(self.inner, param_group, self._trained), KIND)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state; the compressor's is `handle.state_dict()`."""
        return self._wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the wrapped optimizer's state."""
        self._wrapped.load_state_dict(state_dict)

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        return self._front_end.accumulate()
