"""The front end without DDP: an optimizer whose gradients are reduced as backward makes them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.controllers import Controller
from gradwire.frontends.handle import Handle
from gradwire.frontends.hooks import GradientHooks, Whole
from gradwire.frontends.job import Choices, Dense, device_of, let_go, mesh_of, parameters_of, runtime_of, slots_of
from gradwire.frontends.values import share_values, values_of
from gradwire.frontends.wrapper import Wrapper
from gradwire.groups import Grouping
from gradwire.memories import Memory
from gradwire.plans import Group, Plan
from gradwire.transports import Mesh, ProcessGroup, Transport


class DistributedOptimizer(Wrapper):
    """`optimizer`, with the gradients of `model` compressed and averaged over all ranks.

    After `loss.backward()` every `p.grad` is the mean, so that clipping, GradScaler and schedulers work as with
    one process. Parameters and buffers are rank 0's from the start. Accumulate gradients under `no_sync()`.
    The arguments are those of `gradwire.attach`; `handle` is what that returns.

    Raises ValueError for what `attach` refuses, and RuntimeError from backward where a parameter got no
    gradient on this rank, unless `find_unused_parameters`, and from `step` after `handle.detach()`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        compressor: Compressor | Plan | str | None = None,
        *,
        memory: Memory | None = None,
        communicator: Communicator | None = None,
        dense: Dense | None = None,
        groups: Grouping | None = None,
        candidates: Sequence[Compressor | Group] = (),
        fidelity: float | None = None,
        transport: Transport | Mesh | None = None,
        process_group: dist.ProcessGroup | None = None,
        find_unused_parameters: bool = False,
        controller: Controller | None = None,
        scaler: torch.amp.GradScaler | None = None,
        elastic: bool = False,
        seed: int = 0,
    ) -> None:
        choices = Choices.of(
            compressor, memory=memory, communicator=communicator, dense=dense, groups=groups, candidates=candidates,
            fidelity=fidelity, controller=controller, elastic=elastic,
        )  # fmt: skip
        choices.check()
        # On all ranks together: a group is made, then what must be alike is compared over the store, and only then do
        # parameters become rank 0's. Where ranks differ, all of them raise before any value was sent
        self._parameters, others = parameters_of(model)
        values, device = values_of(model), device_of(self._parameters)
        mesh = mesh_of(transport, partial(ProcessGroup.own, process_group), device)
        self._front_end = GradientHooks(self._parameters, model, Whole(), find_unused_parameters, process_group)
        runtime = None
        if mesh.ranks == 1 and not elastic:
            let_go(mesh, transport)
        else:
            words = {"front end": "DistributedOptimizer", "find_unused_parameters": str(find_unused_parameters)}
            runtime = runtime_of(
                choices, self._parameters, slots_of(self._parameters), mesh, scaler=scaler, words=words, seed=seed,
                find_unused=find_unused_parameters, others=others, values=values, owns_mesh=transport is None,
            )  # fmt: skip
            share_values(model, mesh, device)
            self._front_end.hook_in(runtime)
        self.handle = Handle(runtime, self._front_end)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.inner = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The wrapped optimizer's step. Raises RuntimeError where `handle` was detached."""
        if self._front_end.detached:
            raise RuntimeError("detach() ended the exchange of gradients; wrap the optimizer anew, or the model in DDP")
        assert self.inner is not None
        return self.inner.step(closure)

    def skip(self) -> None:
        """In place of `step()`: takes back the last backward pass on all ranks, as `handle.skip()` does."""
        self.handle.skip()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters to the wrapped optimizer. Raises ValueError for one whose gradient is not reduced."""
        if self.inner is None:  # while this object is made
            super().add_param_group(param_group)
            return
        parameters = param_group["params"]
        reduced = {id(p) for p in self._parameters.values()}
        for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
            if id(parameter) not in reduced:
                raise ValueError(
                    "the group has a parameter that was frozen, or not the model's, when the optimizer was wrapped; "
                    "wrap it anew"
                )
        self.inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state; the compressor's is `handle.state_dict()`."""
        assert self.inner is not None
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the wrapped optimizer's state."""
        assert self.inner is not None
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        return self._front_end.accumulate()
