"""The front end for DistributedDataParallel."""

import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec, replicated_specs
from gradwire.frontends.ddp.buckets import Buckets, reduce_dense
from gradwire.frontends.ddp.native_steps import NO_JOIN, NativeSteps
from gradwire.frontends.ddp.unreduced import Unreduced
from gradwire.frontends.front_end import FrontEnd
from gradwire.frontends.hooks.module_hooks import Hook, RegisteredHooks, trainable
from gradwire.frontends.paused import Accumulated, paused
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.steps.step_lock import GONE
from gradwire.torch_private.autograd import in_backward, when_backward_ends
from gradwire.torch_private.compiled import named_parameters
from gradwire.torch_private.reducer import delayed_by, hooks_of, is_joining, retire, with_hook, without_hook


class DDPFrontEnd(FrontEnd):
    """The front end of one DDP: hooks that hand its gradients to the runtime, all on the thread that trains.

    1. Before a forward pass `_forward_begins` notes whether DDP is to reduce the next backward pass, and swaps reducers
       where the plan has become native, or is not any more.
    2. Backward makes a gradient; the first one opens a step. Autograd calls our hook, then DDP's, which copies the
       gradient into its bucket. So a gradient arrives when our next hook, or DDP's bucket hook, is called: then it lies
       in the bucket, where its mean goes. Groups need not follow DDP's buckets.
    3. `_bucket_ready`: a bucket is complete. Its slots that did not arrive have no gradient, or only one that was
       accumulated before. The first bucket's future, for which DDP waits first, completes when all means are in place.

    On a GPU hooks on all gradients would take Python's lock from the threads that launch work (`Buckets.wants_each`).
    Without them DDP's first bucket opens the step, and gradients arrive bucket by bucket.

    DDP's first bucket opens the step in three more cases, in which no hook tells beforehand that DDP will reduce: after
    `ddp.forward(x)`, for which torch runs no forward hook; with a static graph; and on a rank that has joined.

    While the plan is native, DDP reduces by itself: see `native_steps`. The parameters of
    `delay_all_reduce_named_params` it always reduces by itself: they are not in its buckets.
    """

    unreduced: Unreduced
    """The parameters whose gradients do not go to the runtime."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        # DDP's C++ side holds this; the collector does not see that cycle
        self._module = weakref.ref(ddp)
        self.runtime: Runtime | None = None
        self._slot: dict[Tensor, int] = {}
        self._managed: Collection[Tensor] = ()
        self._named: Mapping[str, nn.Parameter] = {}  # tensor parallelism leaves the module none after a forward pass
        self._buckets: Buckets | None = None
        # DDP reduces the backward pass that follows; a step is open; DDP's reducer is without our hook
        self._synchronising = self._open = self._native = False
        self._accumulated, self._native_steps = Accumulated(), NativeSteps()
        self._forward_hooks, self._gradient_hooks = RegisteredHooks(), RegisteredHooks()

    @property
    def ddp(self) -> Any:
        """The DDP. Raises ValueError where it is gone."""
        if (ddp := self._module()) is None:
            raise ValueError(GONE)
        return ddp

    @classmethod
    def of(cls, ddp: DistributedDataParallel) -> "DDPFrontEnd":
        """The front end of a DDP, whose one hook it is; an earlier, detached one serves again.

        Raises ValueError where another hook is registered, or this one is in use."""
        front_end: Any = cls(ddp)
        for hook in hooks_of(ddp):
            front_end = getattr(hook, "__self__", None)
            if not isinstance(front_end, cls):
                raise ValueError("this DDP has a communication hook already; attach to a new DDP of the same module")
            if front_end.runtime:
                raise ValueError("this DDP is attached already; call detach() of its handle first")
        front_end._named = dict(named_parameters(ddp.module))
        return front_end

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a DDP, or one that was saved whole, is reduced by itself, and may be attached to."""
        return DDPFrontEnd._of_copy, (self._module(),)

    @classmethod
    def _of_copy(cls, ddp: DistributedDataParallel) -> "DDPFrontEnd":
        front_end = cls(ddp)
        front_end._native = True  # its reducer is new, without the hook that it lists
        return front_end

    def hook_in(self, runtime: Runtime, parameters: dict[str, nn.Parameter], managed: Collection[Tensor]) -> None:
        """Hands gradients of `parameters` to the runtime from now on; DDP's buckets have all that are `managed`."""
        if not hooks_of(self.ddp):
            self.ddp.register_comm_hook(None, self._bucket_ready)
        elif self._native:
            with_hook(self.ddp, self._bucket_ready)
        # a slot for every parameter, found by its tensor
        self.runtime, self._managed = runtime, managed
        self._native = False
        self._slot = {parameters[slot.name]: index for index, slot in enumerate(runtime.slots)}
        self._accumulated = Accumulated()
        self._buckets = Buckets(runtime, self._slot, self.ddp, self._accumulated)
        self.unreduced = Unreduced(self.ddp, self._named, managed)
        before, after, hooks = self.ddp.register_forward_pre_hook, self.ddp.register_forward_hook, self._forward_hooks
        hooks.keep(
            before(Hook(self.unreduced.warn)), before(Hook(self._forward_begins)), after(Hook(self._forward_ends))
        )
        self._see_gradients(runtime, self._buckets)

    def unhook(self) -> None:
        """DDP reduces dense from now on; not at all where ranks may be lost, and one was."""
        # DDP's group has lost a rank: its own collectives would hang
        if self.runtime and self.runtime.elastic and self.runtime.error and self._module():
            retire(self.ddp)
        self.runtime = None
        self._forward_hooks.remove()
        self._gradient_hooks.remove()
        self._buckets, self._slot, self._managed = None, {}, ()
        self._synchronising = self._open = self._native_steps.made = False

    def accumulate(self) -> AbstractContextManager[None]:
        return self.ddp.no_sync()

    def paused(self) -> AbstractContextManager[None]:
        return paused(self._named.values(), self._accumulated, self.ddp.no_sync())

    def skip(self) -> None:
        """Takes back the last step. Where DDP reduces by itself, it has no state."""
        if self.runtime and not (self._native or self._native_steps.made):
            self.runtime.skip(self._accumulated.no_skip())

    def placed(self) -> Mapping[str, ShardSpec]:
        """A replica on every rank."""
        return replicated_specs(self.ddp.process_group, self._named)

    def held(self) -> Mapping[str, Tensor]:
        """All parameters that are reduced, by us or by DDP."""
        if not self.runtime:
            return {}
        reduced = {*self._slot, *delayed_by(self.ddp)}
        return {name: p for name, p in self._named.items() if p in reduced}

    # Gradients

    def _see_gradients(self, runtime: Runtime, buckets: Buckets) -> None:
        """Has gradients arrive one by one from now on, by hooks on all of them, or bucket by bucket."""
        before, buckets.one_by_one = buckets.one_by_one, buckets.wants_each(self.ddp)
        if before and not buckets.one_by_one:
            self._gradient_hooks.remove()
        elif buckets.one_by_one and not before:
            self._gradient_hooks.on_gradients(self._slot, partial(self._gradient_hook, runtime, buckets))

    def _gradient_hook(self, runtime: Runtime, buckets: Buckets, slot: int) -> Callable[[Tensor], None]:
        arrive = runtime.mark_ready
        became_ready = runtime.became_ready
        by_bucket = buckets.arrives_with_bucket(self.ddp, slot)

        def ready(parameter: Tensor) -> None:  # runs for each parameter and step: nothing else belongs here
            if not self._open and not self._backward_begins():
                buckets.accumulated.note(slot)
                return
            if buckets.notes:
                became_ready(slot)
            # the gradient before this one is in its bucket by now; this one will be when the next hook runs
            if buckets.fixed and not by_bucket:
                late, buckets.late = buckets.late, slot
                if late is not None:
                    arrive(late)
            else:
                buckets.seen.add(slot)

        return ready

    def _bucket_ready(self, state: None, bucket: GradBucket) -> Future[Tensor]:
        runtime, buckets = self.runtime, self._buckets
        if runtime is None or buckets is None:
            return reduce_dense(bucket, self.ddp.process_group)
        if not self._open and bucket.index() == 0:
            self._first_bucket(runtime, buckets)
        # hand the bucket over; DDP waits for the future before its backward pass ends
        if self._open:
            buckets.complete(bucket)
            future = runtime.watch(bucket.buffer(), waits=bucket.index() == 0)  # DDP waits for this one first
        else:
            # a native plan, while DDP still has our hook
            future = reduce_dense(bucket, self.ddp.process_group)
            self._native_steps.reduces(runtime)
        # the backward pass ends: errors of the worker are raised on this thread
        if bucket.is_last() and in_backward():  # behind DDP's own end of backward, to which SystemExit is no error
            when_backward_ends(partial(when_backward_ends, runtime.check_whole))
        if bucket.is_last():  # DDP, too, ignores what backward does from here to the next forward pass
            self._synchronising = self._open = False
            buckets.end()
        return future

    def _backward_begins(self) -> bool:
        """Opens a step at its first gradient, where DDP is known to reduce this backward pass."""
        if not self._synchronising or self.runtime is None or self.runtime.plan.native:
            return False
        return self._open_step(self.runtime)

    def _first_bucket(self, runtime: Runtime, buckets: Buckets) -> None:
        """Opens a step at DDP's first bucket, where no gradient has opened it. With a native plan none is opened."""
        if self._native_steps.made:
            self._native_steps.forward_begins(runtime)
        elif runtime.plan.native:
            self._native_steps.begin(runtime)
        if runtime.plan.native:
            return
        if is_joining(self.ddp):  # a rank that has joined the others has new buckets each time
            buckets.forget()
        if self._open_step(runtime) and not self._synchronising:  # and so no forward pass was seen
            runtime.forward_begins()
            runtime.forward_ends()

    def _open_step(self, runtime: Runtime) -> bool:
        """Opens a step; returns False where the plan has just become native."""
        assert self._buckets is not None
        self._open = runtime.open_step()
        if self._open:
            self._buckets.begin()
            self._accumulated.since_step = False
        return self._open

    # Forward passes

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        runtime = self.runtime
        if runtime is None or not torch.is_grad_enabled():
            return
        # an error of the last step is raised here; a step whose backward pass failed is given up
        runtime.raise_error()
        if self._open:
            self._give_up(runtime)
        # before the ranks wait for each other, as at the end of steps that a controller has asked for
        if runtime.plan.native and is_joining(self.ddp):
            runtime.refuse(NO_JOIN)
        # will DDP reduce the next backward pass? then its own step, if it made one, is over
        self._synchronising = self.ddp.require_backward_grad_sync  # DDP, too, decides that in forward
        if self._synchronising:
            self._native_steps.forward_begins(runtime)
        else:  # on a GPU no hook may see its backward pass
            self._accumulated.since_step = True
        # the plan has become native, or is not any more: DDP's reducer is swapped while it holds no gradient
        if runtime.plan.native and not self._native:
            self._go_native(runtime)
        elif self._synchronising and self._native and not runtime.plan.native:
            self._come_back()
        if not self._native and self._buckets:
            self._see_gradients(runtime, self._buckets)
        runtime.forward_begins()

    def _give_up(self, runtime: Runtime) -> None:
        """Gives up a step whose backward pass failed: DDP itself raises on this rank alone."""
        if self._buckets and not self.ddp.find_unused_parameters:
            self._buckets.refuse_frozen()
        runtime.give_up()
        self._open = False

    def _forward_ends(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self.runtime and torch.is_grad_enabled():
            self.runtime.forward_ends()

    # Native plans

    def _go_native(self, runtime: Runtime) -> None:
        """Has DDP reduce by itself, before the next step accumulates, which DDP's new reducer must see."""
        assert self._buckets is not None
        self._native, self._buckets.one_by_one = True, False
        self._native_steps.begin(runtime)
        runtime.native_begins()
        self._gradient_hooks.remove()
        with trainable(self._managed):
            without_hook(self.ddp, {n: p for n, p in self._named.items() if p in self._managed}, runtime.sparse)
        # one parameter's gradient shows that DDP made a step; where some may be unused, any of them
        seen = self._slot if self.ddp.find_unused_parameters else dict([*self._slot.items()][:1])
        ready = partial(self._native_gradient_ready, runtime, self._buckets)
        self._gradient_hooks.on_gradients(seen, lambda slot: partial(ready, slot))

    def _native_gradient_ready(self, runtime: Runtime, buckets: Buckets, slot: int, parameter: Tensor) -> None:
        if self._synchronising:
            self._native_steps.reduces(runtime)
            buckets.accumulated.slots.clear()
        else:
            buckets.accumulated.slots.add(slot)

    def _come_back(self) -> None:
        """Has DDP reduce by our hook again, with a new reducer, whose buckets are new."""
        assert self._buckets is not None
        self._native = False
        self._gradient_hooks.remove()
        self._buckets.forget()
        with_hook(self.ddp, self._bucket_ready)
