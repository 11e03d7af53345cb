"""Counts what operations allocate."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """The largest storage, in bytes, that any operation made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.by = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                size = tensor.untyped_storage().nbytes()
                if size > self.bytes:
                    self.bytes, self.by = size, f"{func} -> {tuple(tensor.shape)}"
        return result
