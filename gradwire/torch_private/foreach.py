"""One call for many small tensors; and the plain tensors that a subclass is made of."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """targets[i] becomes sources[i]."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateImportUsage]


def add_each(targets: Sequence[Tensor], sources: Sequence[Tensor], alpha: float = 1.0) -> None:
    """targets[i] += alpha·sources[i]."""
    if targets:
        torch._foreach_add_(list(targets), list(sources), alpha=alpha)  # pyright: ignore[reportPrivateImportUsage]


def add_to_each(targets: Sequence[Tensor], number: Tensor) -> None:
    """targets[i] += number (1,), in one call for all targets of a type."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for target in targets:
        by_dtype.setdefault(target.dtype, []).append(target)
    for dtype, own in by_dtype.items():
        add_each(own, [number.to(dtype)] * len(own))


def scale_each(targets: Sequence[Tensor], factor: float | Tensor) -> None:
    """targets[i] *= factor, a number or a tensor ()."""
    if targets:
        torch._foreach_mul_(list(targets), factor)  # pyright: ignore[reportPrivateImportUsage]


def scale_each_by(targets: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
    """targets[i] *= factors[i], tensors ()."""
    torch._foreach_mul_(list(targets), list(factors))  # pyright: ignore[reportPrivateImportUsage]


def zero_each(targets: Sequence[Tensor]) -> None:
    """targets[i] = 0."""
    if targets:
        torch._foreach_zero_(list(targets))  # pyright: ignore[reportPrivateImportUsage]


def largest_of(tensors: Sequence[Tensor]) -> Tensor:
    """The largest absolute value of each tensor, NaN where one of its elements is, (len(tensors),)."""
    return torch.stack(torch._foreach_norm(list(tensors), float("inf")))  # pyright: ignore[reportPrivateImportUsage]


def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor, (len(tensors),) float32."""
    norms = torch._foreach_norm(list(tensors), dtype=torch.float32)  # pyright: ignore[reportPrivateImportUsage]
    return torch.stack(norms)


def memory_of(tensor: Tensor) -> list[Tensor]:
    """The tensors that a sparse one is made of; of any other itself."""
    return [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors in which a subclass such as DTensor, or a quantized weight, keeps its values; of any other itself."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    # a DTensor's mesh is one of them
    parts = [getattr(tensor, name) for name in names]
    return [plain for part in parts if isinstance(part, Tensor) for plain in plain_tensors(part)]
