"""The front end for DistributedDataParallel."""

import weakref
from collections.abc import Callable, Container, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire import checkpoint
from gradwire.communicators import Communicator
from gradwire.compressors import FP32, Compressor
from gradwire.controllers import Auto, Controller
from gradwire.engine import Engine
from gradwire.layout import Slot
from gradwire.memory import Memory
from gradwire.plan import Group, Plan, uniform
from gradwire.stats import Stats
from gradwire.trace import Trace
from gradwire.transports import ProcessGroup, Transport

Dense = Callable[[str, nn.Parameter], bool]


class Handle:
    """What `attach` returns: looks into a job's engine, saves it, and ends it."""

    def __init__(self, engine: Engine | None, detach: Callable[[], None]) -> None:
        self._engine = engine
        self._detach: Callable[[], None] | None = detach

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None with one rank, where nothing is sent."""
        return self._engine.plan if self._engine else None

    def stats(self) -> Stats:
        """Bytes, ratios and seconds so far, of this rank."""
        return self._engine.stats() if self._engine else Stats(0, 0, 0, 0, 0, 0, 0)

    def trace(self, steps: int = 1) -> Trace:
        """Records the next `steps` whole steps; `timelines()` of what this returns are there once the forward pass
        after them has begun. Raises ValueError where the engine reduces nothing."""
        if not self._engine or self._engine.aside:
            why = "DDP reduces by itself now" if self._engine else "there is one rank"
            raise ValueError(f"{why}, and nothing to trace; use torch.profiler")
        return self._engine.trace(steps)

    def state_dict(self) -> checkpoint.StateDict:
        """This rank's memories and other compressor state: tensors only. Save one per rank; to resume with
        another number of ranks see `checkpoint.reshard`."""
        return checkpoint.pack(self._engine.export(), self._engine.steps) if self._engine else {"step": torch.tensor(0)}

    def load_state_dict(self, state: checkpoint.StateDict) -> None:
        """Takes over what `state_dict` returned on this rank, whatever the plan was then.

        Raises ValueError for what is no such state."""
        exported, steps = checkpoint.unpack(state)
        if self._engine:
            self._engine.adopt(exported, steps)

    def replan(self, plan: Plan) -> None:
        """Puts `plan` in force from the next step on; all ranks must do so after the same step. Memories move to
        the new groups. Raises ValueError where the plan does not fit the model or the other ranks' plans."""
        if self._engine:
            self._engine.install(plan)

    def detach(self) -> None:
        """DDP reduces dense again; a `DistributedOptimizer`, without which nobody reduces, takes no step any more. What
        memories hold is in `state_dict()` before, if you want it."""
        engine, self._engine = self._engine, None
        detach, self._detach = self._detach, None
        if detach:
            detach()
        if engine:
            engine.close()


def attach(
    ddp: DistributedDataParallel,
    compressor: Compressor | Plan | None = None,
    *,
    memory: Memory | None = None,
    communicator: Communicator | None = None,
    dense: Dense | None = None,
    candidates: Sequence[Compressor | Group] = (),
    transport: Transport | None = None,
    controller: Controller | None = None,
    seed: int = 0,
) -> Handle:
    """Compresses the gradients that `ddp` reduces; train as before.

    Memory and communicator default to what suits the compressor. Parameters for which `dense(name, parameter)`
    holds travel uncompressed; by default those of fewer than two dimensions. `seed` starts all randomness.
    Instead of a compressor, a `Plan` says all this group by group. A `controller` changes the plan while training.
    With neither, the fastest plan is found while training, from `candidates` or from what is always safe: see
    `gradwire.Auto`.

    Call it on all ranks, before training. Raises ValueError, naming the call that works, for pairings that make
    no sense, for ranks that differ, and where `ddp` has a hook already or mixed precision of its own.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(f"attach() takes a DistributedDataParallel, not {type(ddp).__name__}; wrap the model first")
    if ddp.mixed_precision is not None:
        raise ValueError("DDP(mixed_precision=...) takes the hook that Gradwire needs; use torch.autocast instead")
    compressor, controller = automatic(compressor, candidates, controller)
    bridge = _Bridge.of(ddp)
    parameters = {name: p for name, p in ddp.module.named_parameters() if p.requires_grad and p.numel()}
    device = next(iter(parameters.values())).device
    slots = [Slot.of(name, p) for name, p in parameters.items()][::-1]
    plan, replan = planned(slots, compressor, memory, communicator, dense, parameters)
    own = transport or ProcessGroup.own(ddp.process_group)
    if own.ranks == 1:
        return Handle(None, bridge.unhook)
    engine = Engine(
        plan, slots, own, device, seed=seed, find_unused=ddp.find_unused_parameters, replan=replan,
        controller=controller, may_stand_aside=not ddp.static_graph, others=others_of(ddp.module, parameters),
    )  # fmt: skip
    bridge.hook_in(engine, parameters)
    return Handle(engine, bridge.unhook)


def automatic(
    compressor: Compressor | Plan | None, candidates: Sequence[Compressor | Group], controller: Controller | None
) -> tuple[Compressor | Plan, Controller | None]:
    """Dense, and `Auto`, where no compressor is named. Raises ValueError for arguments that contradict each other."""
    if compressor is None:
        if controller:
            raise ValueError(f"{type(controller).__name__} needs a compressor to start from; name one as well")
        return FP32(), Auto(candidates)
    if candidates:
        raise ValueError("candidates are for the automatic plan; leave the compressor out, or name it alone")
    return compressor, controller


def planned(
    slots: list[Slot],
    compressor: Compressor | Plan,
    memory: Memory | None,
    communicator: Communicator | None,
    dense: Dense | None,
    parameters: dict[str, nn.Parameter],
) -> tuple[Plan, Callable[[list[Slot]], Plan] | None]:
    """The plan for the arguments of `attach`, and how to make it anew when the order of gradients is known."""
    if isinstance(compressor, Plan):
        if memory or communicator or dense:
            raise ValueError("a Plan says memory, communicator and what is dense itself; pass the Plan alone")
        return compressor, None
    options: dict[str, Any] = {"memory": memory, "communicator": communicator}
    if dense:
        options["dense"] = lambda slot: dense(slot.name, parameters[slot.name])
    replan = partial(uniform, compressor=compressor, **options)
    return replan(slots), replan


def others_of(module: nn.Module, parameters: Container[str]) -> set[str]:
    """The names of parameters that are not reduced: frozen or empty."""
    return {name for name, _ in module.named_parameters() if name not in parameters}


class _Bridge:
    """Between DDP's hooks and the engine.

    A gradient is taken as soon as autograd has it, so that groups need not follow DDP's buckets. DDP's bucket
    hook says which parameters of a bucket got none, and receives the means.

    DDP copies a gradient into its bucket right after autograd has it: when the next one is ready it is there. What
    travels dense is given only then, and reduced right there; so is what may have its mean written there. DDP moves its
    buckets once, after the first step; those that stayed for two steps stay for ever.

    DDP does not give up a hook, and with one it divides in a pass of its own. So where the engine stands aside, DDP
    gets a new reducer, as it does when it is unpickled, and the hook when the engine is back. Meanwhile a step is over
    when a gradient came since the one before and the next forward pass begins: not every pass is followed by backward.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = weakref.proxy(ddp)  # DDP's C++ side holds this; the collector does not see that cycle
        self.engine: Engine | None = None
        self._slot: dict[Tensor, int] = {}
        self._given: set[int] = set()
        self._accumulated: set[int] = set()
        self._homes: dict[int, Tensor] = {}
        self._settled: set[int] = set()
        self._late: tuple[int, Tensor | None] | None = None
        self._synchronising = self._aside = self._reduced = False
        self._aside_since: float | None = None
        self._aside_s: list[float] = []
        self._removable: list[Any] = []
        self._on_gradients: list[Any] = []
        self._group: Any = ddp.process_group

    @classmethod
    def of(cls, ddp: DistributedDataParallel) -> "_Bridge":
        """The bridge of a DDP, whose one hook it is; an earlier, detached one serves again.

        Raises ValueError where the hook is somebody else's, or in use."""
        for hook, _ in ddp._comm_hooks:
            bridge = getattr(hook, "__self__", None)
            if not isinstance(bridge, cls):
                raise ValueError("this DDP has a communication hook already; attach to a new DDP of the same module")
            if bridge.engine:
                raise ValueError("this DDP is attached already; call detach() of its handle first")
            return bridge
        bridge = cls(ddp)
        ddp.register_comm_hook(None, bridge._bucket_ready)  # pyright: ignore[reportArgumentType]
        return bridge

    def hook_in(self, engine: Engine, parameters: dict[str, nn.Parameter]) -> None:
        self.engine = engine
        self._slot = {parameters[slot.name]: index for index, slot in enumerate(engine.slots)}
        self._removable.append(self.ddp.register_forward_pre_hook(self._forward_begins))
        self._removable.append(self.ddp.register_forward_hook(self._forward_ends))
        if self._aside:
            self._come_back()
        else:
            self._see_gradients()

    def unhook(self) -> None:
        self.engine = None
        for hook in self._removable:
            hook.remove()
        self._removable.clear()
        self._forget_gradients()
        self._accumulated.clear()

    def _see_gradients(self) -> None:
        if not self.ddp.static_graph:  # there a parameter's hook may fire more than once
            for parameter, slot in self._slot.items():
                hook = partial(self._gradient_ready, slot)
                self._on_gradients.append(parameter.register_post_accumulate_grad_hook(hook))

    def _forget_gradients(self) -> None:
        self._given.clear()
        self._late = None
        self._homes.clear()
        self._settled.clear()
        for hook in self._on_gradients:
            hook.remove()
        self._on_gradients.clear()

    def _count_step(self, engine: Engine) -> None:
        """Before a step of DDP's own: counts the one before, and ends them when the engine wants to be back."""
        now, before = perf_counter(), self._aside_since
        if before is None:
            self._aside_since = now
        elif self._reduced:
            self._reduced, self._aside_since = False, now
            engine.stepped_aside()
            self._aside_s.append(now - before)
            if len(self._aside_s) == engine.aside:
                engine.stood_aside(median(self._aside_s))
                self._aside_s.clear()
            if not engine.aside:
                self._come_back()

    def _stand_aside(self) -> None:
        """Before anything of the next step is accumulated, for DDP's new reducer must see what is."""
        if self.ddp._join_config.enable:
            raise RuntimeError(
                "the automatic plan counts steps, of which DDP.join() gives each rank another number; name a compressor"
            )
        self._aside = True
        self._forget_gradients()
        ddp: Any = self.ddp
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
        for parameter, slot in self._slot.items() if ddp.find_unused_parameters else [*self._slot.items()][:1]:
            hook = partial(self._gradient_seen, slot)
            self._on_gradients.append(parameter.register_post_accumulate_grad_hook(hook))

    def _gradient_seen(self, slot: int, parameter: Tensor) -> None:
        if self._synchronising:
            self._reduced = True
            self._accumulated.clear()
        else:
            self._accumulated.add(slot)

    def _come_back(self) -> None:
        self._aside, self._aside_since, self._reduced = False, None, False
        self._aside_s.clear()
        self._forget_gradients()
        dist._register_comm_hook(self.ddp.reducer, None, self._bucket_ready)  # pyright: ignore
        self._see_gradients()

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        if torch.is_grad_enabled():  # DDP, too, decides in forward whether the next backward synchronises
            self._synchronising = self.ddp.require_backward_grad_sync
            assert self.engine is not None
            if self.engine.aside and not self._aside:
                self._stand_aside()
            if self._aside and self._synchronising:
                self._count_step(self.engine)
            self.engine.forward_begins()

    def _forward_ends(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            assert self.engine is not None
            self.engine.forward_ends()

    def _gradient_ready(self, slot: int, parameter: Tensor) -> None:
        if self._synchronising:
            assert self.engine is not None
            self._give_late()
            self._given.add(slot)
            self.engine.ready(slot)
            if slot in self._settled and (self.engine.dense(slot) or self._may_sink(slot)):
                self._late = slot, parameter.grad
            else:
                self.engine.give(slot, parameter.grad)
        else:
            self._accumulated.add(slot)

    def _give_late(self) -> None:
        """Gives the gradient that DDP has copied into its bucket since it was ready."""
        if self._late is None:
            return
        assert self.engine is not None
        (slot, gradient), self._late = self._late, None
        home = self._homes[slot]
        if self.engine.dense(slot):
            self.engine.give(slot, home)
        else:
            self.engine.give(slot, gradient, home)

    def _may_sink(self, slot: int) -> bool:
        """Whether its mean may go where DDP wants it: not over the gradient, with which a skipped step is undone."""
        assert self.engine is not None
        return self.engine.fills_sinks(slot) and not self.ddp.gradient_as_bucket_view

    def _bucket_ready(self, state: None, bucket: GradBucket) -> Future[Tensor]:
        if self.engine is None:
            return self._dense(bucket)
        self._give_late()
        sinks: dict[int, Tensor] = {}
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if not parameter.numel():
                continue
            slot = self._slot[parameter]
            sinks[slot] = gradient
            if slot in self._given:
                self._settle(slot, gradient)
            elif self.ddp.static_graph or (slot in self._accumulated and parameter.grad is not None):
                self.engine.ready(slot)
                self.engine.give(slot, gradient)
            else:
                self.engine.give(slot, None)
        if bucket.is_last():  # DDP, too, ignores what backward does from here to the next forward pass
            self._synchronising = False
            self._given.clear()
            self._accumulated.clear()
        return self.engine.watch(sinks, bucket.buffer())

    def _settle(self, slot: int, gradient: Tensor) -> None:
        """Notes where in DDP's buckets a slot's gradient lies, and whether it did so in the step before."""
        stayed = slot in self._homes and self._homes[slot].data_ptr() == gradient.data_ptr()
        if slot in self._settled and not stayed:
            raise RuntimeError("DDP moved its buckets in mid-training; call detach() and attach again")
        self._homes[slot] = gradient
        if stayed:
            self._settled.add(slot)

    def _dense(self, bucket: GradBucket) -> Future[Tensor]:
        """Plain all-reduce: with one rank, and after detach."""
        tensor = bucket.buffer().div_(self._group.size())
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])
