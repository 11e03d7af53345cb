"""The front end for DistributedDataParallel."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
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

from gradwire.frontends.stateful import Placed, whole_on
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private import hooks_of, is_joining, retire, when_backward_ends, with_hook, without_hook


@dataclass(frozen=True)
class BucketPlace:
    """Where one of DDP's buckets lies, and the slots in it."""

    address: int
    slots: tuple[int, ...]


class DDPFrontEnd:
    """Between DDP's hooks and the runtime. All of this runs on the thread that trains:

    1. Before the forward pass of a step that counts, `_forward_begins` opens a step, and changes sides where the plan
       has become native, or is not any more.
    2. Backward makes a gradient. Autograd calls our hook, then DDP's, which copies the gradient into its bucket. So
       when our next hook is called, or DDP's bucket hook, the gradient is where it is to be taken from and its mean
       put: it arrives then. Groups need not follow DDP's buckets.
    3. `_bucket_ready`: DDP says that a bucket is complete. What did not arrive of it has no gradient, or only one that
       was accumulated before. DDP gets a future; when all means are in place, it takes them from its bucket.

    DDP moves its buckets once, after the first step. Until they have stayed for a step, slots are submitted bucket by
    bucket; from then on a slot just arrives. DDP does not give up a hook, and with one it divides in a pass of its own.
    So with a native plan DDP gets a new reducer, as when it is unpickled, and the hook when the plan is another. A step
    of its own is over when a gradient came since the one before and the next forward pass begins.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._module = weakref.ref(ddp)  # DDP's C++ side holds this; the collector does not see that cycle
        self.ddp: Any = weakref.proxy(ddp)
        self.runtime: Runtime | None = None
        self._slot: dict[Tensor, int] = {}
        self._seen, self._accumulated = set[int](), set[int]()
        self._places: dict[int, BucketPlace] = {}
        self._late: int | None = None
        self._synchronising = self._open = self._fixed = self._stayed = self._notes = False
        self._native = self._native_reduced = False
        self._native_since: float | None = None
        self._native_s: list[float] = []
        self._removable, self._on_gradients = list[Any](), list[Any]()

    @classmethod
    def of(cls, ddp: DistributedDataParallel) -> "DDPFrontEnd":
        """The front end of a DDP, whose one hook it is; an earlier, detached one serves again.

        Raises ValueError where the hook is somebody else's, or in use."""
        for hook in hooks_of(ddp):
            front_end = getattr(hook, "__self__", None)
            if not isinstance(front_end, cls):
                raise ValueError("this DDP has a communication hook already; attach to a new DDP of the same module")
            if front_end.runtime:
                raise ValueError("this DDP is attached already; call detach() of its handle first")
            return front_end
        return cls(ddp)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a DDP, or one that was saved whole, is reduced by itself, and may be attached to."""
        return DDPFrontEnd._of_copy, (self._module(),)

    @classmethod
    def _of_copy(cls, ddp: DistributedDataParallel) -> "DDPFrontEnd":
        front_end = cls(ddp)
        front_end._native = True  # its reducer is new, without the hook that it lists
        return front_end

    def hook_in(self, runtime: Runtime, parameters: dict[str, nn.Parameter]) -> None:
        """Gradients go to the runtime from now on."""
        if not hooks_of(self.ddp):
            self.ddp.register_comm_hook(None, self._bucket_ready)
        elif self._native:
            with_hook(self.ddp, self._bucket_ready)
        self.runtime, self._native = runtime, False
        self._slot = {parameters[slot.name]: index for index, slot in enumerate(runtime.slots)}
        before, after = self.ddp.register_forward_pre_hook, self.ddp.register_forward_hook
        self._removable += [before(self._forward_begins), after(self._forward_ends)]
        self._see_gradients(runtime)

    def unhook(self) -> None:
        """DDP reduces dense from now on; not at all where ranks may be lost, and one was."""
        if self.runtime and self.runtime.elastic and self.runtime.error:
            retire(self.ddp)
        self.runtime = None
        for hook in self._removable:
            hook.remove()
        self._removable.clear()
        self._forget_gradients()
        self._accumulated.clear()
        self._synchronising = self._open = False

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        return self.ddp.no_sync()

    def placed(self) -> Mapping[str, Placed]:
        """A replica on every rank."""
        return whole_on(self.ddp.process_group, dict(self.ddp.module.named_parameters()))

    def held(self) -> Mapping[str, Tensor]:
        """All that are reduced."""
        return {self.runtime.slots[slot].name: p for p, slot in self._slot.items()} if self.runtime else {}

    # Gradients

    def _see_gradients(self, runtime: Runtime) -> None:
        if not self.ddp.static_graph:  # there a parameter's hook may fire more than once
            for parameter, slot in self._slot.items():
                hook = self._gradient_hook(slot, runtime)
                self._on_gradients.append(parameter.register_post_accumulate_grad_hook(hook))

    def _gradient_hook(self, slot: int, runtime: Runtime) -> Callable[[Tensor], None]:
        arrive, became_ready = runtime.arrive, runtime.became_ready

        def ready(parameter: Tensor) -> None:  # runs for each parameter and step: nothing else belongs here
            if not self._synchronising:
                self._accumulated.add(slot)
                return
            if self._notes:
                became_ready(slot)
            if self._fixed:
                late, self._late = self._late, slot
                if late is not None:
                    arrive(late)
            else:
                self._seen.add(slot)

        return ready

    def _bucket_ready(self, state: None, bucket: GradBucket) -> Future[Tensor]:
        runtime = self.runtime
        if runtime is None:
            return self._reduce_dense(bucket)
        if (
            joined := not self._open
        ):  # a rank that has joined the others makes no forward pass, and has new buckets each time
            self._forget_places()  # gradients may lie elsewhere from now on
            runtime.fix_places(False)
            self._open_step(runtime)
            self._stayed = False
        (self._arrive_fixed if self._fixed else self._submit)(runtime, bucket)
        future = runtime.watch(bucket.buffer())
        if bucket.is_last() and not joined:  # behind DDP's own end of backward, to which SystemExit is no error
            when_backward_ends(partial(when_backward_ends, runtime.raise_error))
        if bucket.is_last():  # DDP, too, ignores what backward does from here to the next forward pass
            self._synchronising = self._open = False
            self._seen.clear()
            self._accumulated.clear()
        return future

    def _submit(self, runtime: Runtime, bucket: GradBucket) -> None:
        """Slot by slot, while buckets may move."""
        slots: list[int] = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if not parameter.numel():
                continue
            slot = self._slot[parameter]
            slots.append(slot)
            if slot in self._seen or self.ddp.static_graph or self._has_accumulated(slot, parameter):
                runtime.submit(slot, gradient)
            else:
                runtime.submit_absent(slot, gradient)
        place, index = BucketPlace(bucket.buffer().data_ptr(), tuple(slots)), bucket.index()
        stayed = self._places.get(index) == place
        self._places[index] = place
        self._stayed = self._stayed and stayed
        if bucket.is_last() and self._stayed and not self.ddp.static_graph:
            self._fixed = True
            runtime.fix_places(True)

    def _arrive_fixed(self, runtime: Runtime, bucket: GradBucket) -> None:
        """What has not arrived of a bucket has no gradient of this pass."""
        if self._late is not None:
            late, self._late = self._late, None
            runtime.arrive(late)
        place, there = self._places[bucket.index()], runtime.arrivals.there
        if bucket.buffer().data_ptr() != place.address:
            runtime.refuse("DDP moved its buckets in mid-training; call detach() and attach again")
        if all(map(there.__getitem__, place.slots)):
            return
        parameters = {self._slot[p]: p for p in bucket.parameters() if p.numel()}
        for slot in place.slots:
            if not there[slot]:
                has = self._has_accumulated(slot, parameters[slot])
                (runtime.arrive if has else runtime.arrivals.absent)(slot)

    def _has_accumulated(self, slot: int, parameter: Tensor) -> bool:
        """Whether an earlier micro-batch alone has a gradient."""
        return slot in self._accumulated and parameter.grad is not None

    def _forget_gradients(self) -> None:
        self._seen.clear()
        self._forget_places()
        for hook in self._on_gradients:
            hook.remove()
        self._on_gradients.clear()

    def _forget_places(self) -> None:
        self._places.clear()
        self._late, self._fixed = None, False

    def _reduce_dense(self, bucket: GradBucket) -> Future[Tensor]:
        """Plain all-reduce: with one rank, and after detach."""
        group = self.ddp.process_group
        tensor = bucket.buffer().div_(group.size())
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])

    # Forward passes

    def _forward_begins(self, module: nn.Module, arguments: Any) -> None:
        runtime = self.runtime
        if runtime is None or not torch.is_grad_enabled():
            return
        self._synchronising = self.ddp.require_backward_grad_sync  # DDP, too, decides that in forward
        if runtime.plan.native and not self._native:
            self._go_native(runtime)
        if self._synchronising:
            if self._native:
                self._count_native_step(runtime)
            if not runtime.plan.native:
                self._come_back(runtime) if self._native else None
                self._open_step(runtime)
        runtime.recorder.forward_begins(runtime.plan)

    def _forward_ends(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self.runtime and torch.is_grad_enabled():
            self.runtime.recorder.forward_ends()

    def _open_step(self, runtime: Runtime) -> None:
        self._late = None
        runtime.open_step()
        self._open = self._stayed = True
        self._notes = runtime.wants_readiness

    # Native plans

    def _go_native(self, runtime: Runtime) -> None:
        """Before anything of the next step is accumulated, for DDP's new reducer must see what is."""
        if is_joining(self.ddp):
            runtime.refuse(
                "the automatic plan counts steps, of which DDP.join() gives each rank another number; name a compressor"
            )
        self._native, self._native_since, self._native_reduced = True, perf_counter(), False
        self._forget_gradients()
        without_hook(self.ddp)
        for parameter, slot in self._slot.items() if self.ddp.find_unused_parameters else [*self._slot.items()][:1]:
            hook = self._native_gradient_hook(slot)
            self._on_gradients.append(parameter.register_post_accumulate_grad_hook(hook))

    def _native_gradient_hook(self, slot: int) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if self._synchronising:
                self._native_reduced = True
                self._accumulated.clear()
            else:
                self._accumulated.add(slot)

        return ready

    def _count_native_step(self, runtime: Runtime) -> None:
        """Counts the step that DDP made by itself, if it made one; after as many as it was to make, what follows is
        decided."""
        if not self._native_reduced or self._native_since is None:
            return
        now = perf_counter()
        self._native_s.append(now - self._native_since)
        self._native_since, self._native_reduced = now, False
        runtime.native_step_ended()
        if runtime.native_steps == 0:
            seconds, self._native_s = median(self._native_s), []
            runtime.native_ended(seconds)

    def _come_back(self, runtime: Runtime) -> None:
        self._native, self._native_since = False, None
        self._native_s.clear()
        self._forget_gradients()
        runtime.fix_places(False)
        with_hook(self.ddp, self._bucket_ready)
        self._see_gradients(runtime)
