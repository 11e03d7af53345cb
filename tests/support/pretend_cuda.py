"""A GPU that is not there: tensors that say cuda:0 and compute on the CPU with real numbers.

So what is written for GPUs runs in every test, and what it would launch and wait for is counted.

    with pretended_cuda() as gpu:
        x = on_gpu(torch.randn(10))
        x.topk(3)
    gpu.kernels, gpu.syncs, gpu.pageable

It sees neither streams nor time.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda:0")
CPU = torch.device("cpu")

ASKS = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "item"}
"""Operations whose result, or its size, the host waits for."""
LAUNCHES_NOTHING = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "_reshape_alias",
    "_unsafe_view", "alias",
}  # fmt: skip
COPIES = {"copy_", "_foreach_copy_", "_to_copy"}


class OnGPU(torch.Tensor):
    """A tensor on the GPU; `held` is the CPU's that it stands for."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> "OnGPU":
        size, strides, offset = real.shape, real.stride(), real.storage_offset()
        made = torch.Tensor._make_wrapper_subclass(
            cls, size, strides=strides, storage_offset=offset, dtype=real.dtype, device="meta"
        )
        made.held = real
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: GPU)  # pyright: ignore
    is_cuda = property(lambda self: True)  # pyright: ignore

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return Call(func, args, kwargs or {}).result()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a GPU's tensor cannot become an array")

    def pin_memory(self, device: Any = None) -> Tensor:
        raise RuntimeError("only a CPU's memory is pinned")

    def __repr__(self) -> str:  # pyright: ignore
        return f"OnGPU({self.held})"


def on_gpu(x: Tensor) -> Tensor:
    """A copy of x on the GPU."""
    return OnGPU(x.clone())


def real(x: Tensor) -> Tensor:
    """What a tensor holds, for a test to look at."""
    return x.held if isinstance(x, OnGPU) else x


def leaves(x: Any) -> list[Any]:
    """What an operation's arguments or results consist of: torch nests them in tuples and lists. `torch.utils._pytree`
    does more, and took most of these tests' time."""
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, (tuple, list)) else [x]


def mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """`function` of each of the leaves."""
    if isinstance(x, (tuple, list)):
        return type(x)([mapped(function, item) for item in x])
    return function(x)


@cache
def is_view(func: Any) -> bool:
    infos = [result.alias_info for result in func._schema.returns]
    return any(info is not None and not info.is_write for info in infos)


@cache
def name_of(func: Any) -> str:
    return func._schema.name.split("::")[1]


def as_product(func: Any, args: Any) -> tuple[Any, Any]:
    """A division by a number as torch computes it on a GPU: times the reciprocal (BinaryDivTrueKernel.cu)."""
    divided, number = args
    dtype = torch.float64 if divided.dtype == torch.float64 else torch.float32
    product = getattr(torch.ops.aten, name_of(func).replace("div", "mul"))
    inverse = 1 / torch.tensor(float(number), dtype=dtype)
    return getattr(product, func._overloadname), (divided, float(inverse))


class Call:
    """One operation, as torch dispatches it."""

    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name, self.is_view = name_of(func), is_view(func)
        tensors = [leaf for leaf in leaves((args, *kwargs.values())) if isinstance(leaf, Tensor)]
        self.here = [tensor for tensor in tensors if isinstance(tensor, OnGPU)]
        self.elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnGPU) and tensor.dim()]
        wanted = kwargs.get("device")
        self.to = None if wanted is None else torch.device(wanted).type
        self.concerns_gpu = bool(self.here) or self.to in ("cuda", "meta")

    @property
    def result_is_here(self) -> bool:
        if self.to is not None:
            return self.to != "cpu"
        return bool(self.here) and self.name not in ("_local_scalar_dense", "is_nonzero", "equal")

    @property
    def launches(self) -> bool:
        return not self.is_view and self.name not in LAUNCHES_NOTHING and self.result_is_here

    @property
    def divides_by_number(self) -> bool:
        """Whether a GPU's tensor is divided by a number of the host's."""
        if self.name not in ("div", "div_") or "rounding_mode" in self.kwargs:
            return False
        return bool(self.here) and not isinstance(self.args[1], OnGPU)

    @property
    def non_blocking(self) -> bool:
        """Whether a copy between the host and the GPU asks not to be waited for."""
        return bool(self.kwargs.get("non_blocking") or any(self.args[2:]))

    def on_cpu(self) -> tuple[Any, dict[str, Any]]:
        """The arguments, for the CPU to compute with."""
        kwargs = {name: mapped(real, value) for name, value in self.kwargs.items() if name != "pin_memory"}
        return mapped(real, self.args), kwargs | ({"device": CPU} if self.to is not None else {})

    def result(self) -> Any:
        func, args, kwargs = self.func, *self.on_cpu()
        if self.divides_by_number:
            func, args = as_product(func, args)
        pinned, result_is_here = self.kwargs.get("pin_memory", False), self.result_is_here
        owners = {id(tensor.held): tensor for tensor in self.here}

        def owned(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if pinned:
                leaf.is_pinned_ = True  # pyright: ignore
            if id(leaf) in owners:
                return owners[id(leaf)]
            passed_in = any(leaf is tensor for tensor in self.elsewhere)
            return OnGPU(leaf) if result_is_here and not passed_in else leaf

        return mapped(owned, func(*args, **kwargs))


class PretendedGPU(TorchDispatchMode):
    """Counts by operation and, what should not be, by the line of the package that asked for it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self.pageable: Counter[str] = Counter()
        self.counts = True

    def forget(self) -> None:
        for counter in (self.kernels, self.lines, self.syncs, self.pageable):
            counter.clear()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would cost more than the operation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.carry_out(Call(func, args, kwargs or {}))

    def carry_out(self, call: Call) -> Any:
        if not call.concerns_gpu and "pin_memory" not in call.kwargs:
            return call.func(*call.args, **call.kwargs)
        if not (self.counts and call.concerns_gpu):
            return call.result()
        self._check(call)
        found = call.result()
        if call.launches and any(tensor.numel() for tensor in call.here or [torch.ones(1)]):
            self.kernels[call.name] += 1
            self.lines[where(call.name)] += 1
        return found

    def _check(self, call: Call) -> None:
        name = call.name
        if name in ASKS or (name == "repeat_interleave" and call.kwargs.get("output_size") is None):
            self.syncs[where(name)] += 1
        elif name in ("index", "index_put", "index_put_"):
            chosen = [index for index in leaves(call.args[1]) if isinstance(index, Tensor)]
            if any(index.dtype in (torch.bool, torch.uint8) for index in chosen):
                self.syncs[where("choosing by a mask")] += 1
            self.pageable.update(where(name) for index in chosen if not isinstance(index, OnGPU))
        elif name in COPIES:
            self._check_copy(call)
        elif call.elsewhere and call.here:
            raise RuntimeError(f"tensors on two devices: {where(name)}")

    def _check_copy(self, call: Call) -> None:
        to_host = call.to == "cpu" or (call.to is None and not isinstance(leaves(call.args)[0], OnGPU))
        pinned = all(getattr(tensor, "is_pinned_", False) for tensor in call.elsewhere)
        # new memory of the host is not pinned
        waits = not call.non_blocking or (to_host and not (call.elsewhere and pinned))
        if waits and (to_host or call.elsewhere):
            self.syncs[where(call.name)] += 1
        if not to_host and not pinned:
            self.pageable[where(call.name)] += 1


def where(name: str) -> str:
    """An operation and the last line of the package that led to it."""
    frame: FrameType | None = sys._getframe()
    while frame:
        file = frame.f_code.co_filename
        if "/gradwire/" in file and "/tests/" not in file:
            return f"{name} at {file.split('/gradwire/')[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return name


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu"):
        return super().__new__(cls, "cpu")


def _pinned(tensor: Tensor, device: Any = None) -> Tensor:
    copy = tensor.clone()
    copy.is_pinned_ = True  # pyright: ignore
    return copy


@contextmanager
def pretended_cuda() -> Iterator[PretendedGPU]:
    """Has torch find a GPU, as long as this lasts."""
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(list, device="cuda") is a copy that the mode sees
    try:
        with (
            mock.patch.object(torch, "Generator", _Generator),
            mock.patch.object(torch.cuda, "_lazy_init", return_value=None),
            mock.patch.object(torch.accelerator, "current_stream", return_value=SimpleNamespace(stream_id=0)),
            mock.patch.object(torch.Tensor, "pin_memory", _pinned),
            PretendedGPU() as gpu,
        ):
            yield gpu
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
