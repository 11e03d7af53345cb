"""The front end without DDP: an optimizer whose gradients are reduced as backward makes them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.controllers import Controller
from gradwire.ddp import Dense, Handle, automatic, others_of, planned
from gradwire.engine import Engine
from gradwire.layout import Slot
from gradwire.memory import Memory
from gradwire.plan import Group, Plan
from gradwire.transports import ProcessGroup, Transport


class DistributedOptimizer(Optimizer):
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
        compressor: Compressor | Plan | None = None,
        *,
        memory: Memory | None = None,
        communicator: Communicator | None = None,
        dense: Dense | None = None,
        candidates: Sequence[Compressor | Group] = (),
        transport: Transport | None = None,
        process_group: dist.ProcessGroup | None = None,
        find_unused_parameters: bool = False,
        controller: Controller | None = None,
        seed: int = 0,
    ) -> None:
        self.inner = optimizer
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad and p.numel()}
        device = next(iter(self._parameters.values())).device
        slots = [Slot.of(name, p) for name, p in self._parameters.items()][::-1]
        compressor, controller = automatic(compressor, candidates, controller)
        plan, replan = planned(slots, compressor, memory, communicator, dense, self._parameters)
        own = transport or ProcessGroup.own(process_group)
        _share_initial_values(model, process_group)
        self._find_unused = find_unused_parameters
        self._given: set[int] = set()
        self._accumulated: set[int] = set()
        self._synchronising, self._forwarded, self._detached = True, False, False
        self._removable: list[Any] = []
        self._engine: Engine | None = None
        if own.ranks > 1:
            self._engine = Engine(
                plan, slots, own, device,
                seed=seed, find_unused=find_unused_parameters, replan=replan, controller=controller,
                others=others_of(model, self._parameters),
            )  # fmt: skip
            self._removable.append(model.register_forward_pre_hook(self._forward_begins))
            self._removable.append(model.register_forward_hook(self._forward_ends))
            for index, slot in enumerate(slots):
                hook = partial(self._gradient_ready, index)
                self._removable.append(self._parameters[slot.name].register_post_accumulate_grad_hook(hook))
        self.handle = Handle(self._engine, self._unhook)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.state = optimizer.state

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The wrapped optimizer's step. Raises RuntimeError where `handle` was detached."""
        if self._detached:
            raise RuntimeError("detach() ended the exchange of gradients; wrap the optimizer anew, or the model in DDP")
        return self.inner.step(closure)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state; the compressor's is `handle.state_dict()`."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the wrapped optimizer's state."""
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        before, self._synchronising = self._synchronising, False
        try:
            yield
        finally:
            self._synchronising = before

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        if self._engine and torch.is_grad_enabled():
            self._forwarded = True
            self._engine.forward_begins()

    def _forward_ends(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self._engine and torch.is_grad_enabled():
            self._engine.forward_ends()

    def _gradient_ready(self, slot: int, parameter: Tensor) -> None:
        if not self._synchronising:
            self._accumulated.add(slot)
            return
        assert self._engine is not None
        if not self._given:
            if not self._forwarded:  # the loss came from another method than forward
                self._engine.forward_begins()
                self._engine.forward_ends()
            self._forwarded = False
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_done)  # pyright: ignore[reportAttributeAccessIssue]
        if slot in self._given:
            raise RuntimeError(
                f"parameter {self._engine.slots[slot].name!r} got two gradients in one backward; "
                "use torch.utils.checkpoint with use_reentrant=False"
            )
        self._given.add(slot)
        self._engine.ready(slot)
        self._engine.give(slot, parameter.grad)

    def _backward_done(self) -> None:
        engine = self._engine
        assert engine is not None
        absent = set(range(len(engine.slots))) - self._given
        unused = absent - self._accumulated
        self._given.clear()
        self._accumulated.clear()
        if unused and not self._find_unused:
            name = engine.slots[min(unused)].name
            raise RuntimeError(f"parameter {name!r} got no gradient; pass find_unused_parameters=True, or freeze it")
        for slot in absent:
            engine.give(slot, None if slot in unused else self._parameters[engine.slots[slot].name].grad)
        engine.wait()
        for index, (slot, mean) in enumerate(zip(engine.slots, engine.means(), strict=True)):
            parameter = self._parameters[slot.name]
            if engine.used(index):
                parameter.grad = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
                if parameter.grad.data_ptr() != mean.data_ptr():  # a dense group of one is reduced where it is
                    parameter.grad.copy_(mean)

    def _unhook(self) -> None:
        for hook in self._removable:
            hook.remove()
        self._engine, self._detached = None, True


@torch.no_grad()
def _share_initial_values(model: nn.Module, group: dist.ProcessGroup | None) -> None:
    source = dist.get_process_group_ranks(group)[0] if group else 0
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor, source, group=group)
