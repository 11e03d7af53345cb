"""An optimizer around another one."""

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from gradwire.frontends.owners import held_by
from gradwire.frontends.values import is_sharded
from gradwire.options import check_type
from gradwire.torch_private.reducer import is_ddp


def _of_inner(name: str) -> Any:
    """A property with the value of `inner`, and while the wrapper is made with its own, which torch sets."""

    def read(wrapper: "Wrapper") -> Any:
        return wrapper.__dict__[name] if wrapper.inner is None else getattr(wrapper.inner, name)

    def write(wrapper: "Wrapper", value: object) -> None:
        if wrapper.inner is None:
            wrapper.__dict__[name] = value
        else:
            setattr(wrapper.inner, name, value)

    return property(read, write)


class Wrapper(Optimizer):
    """An optimizer around `inner`, with the same groups and state, also once `inner` has loaded others by itself. Its
    methods and attributes, such as `train()` and `eval()` of a schedule-free one, are found here as well."""

    argument = "optimizer"
    """The name of the argument that becomes `inner`."""
    inner: Optimizer | None = None
    param_groups = _of_inner("param_groups")
    state = _of_inner("state")

    def _wrap(self, optimizer: Optimizer) -> None:
        """Makes this one an optimizer around `optimizer`."""
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.inner = optimizer

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ValueError for another `inner`: the exchange has the parameters and the state of this one."""
        if name == "inner" and self.inner is not None and value is not self.inner:
            kind = type(self).__name__
            raise ValueError(f"{kind} cannot change its inner optimizer: call handle.detach(), and wrap the new one")
        super().__setattr__(name, value)

    @property
    def _wrapped(self) -> Optimizer:
        """`inner`, once the wrapper is made."""
        assert self.inner is not None
        return self.inner

    def __getattr__(self, name: str) -> Any:
        """The attribute of `inner`, except torch's private ones, which begin with "_"."""
        if self.inner is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    def __getstate__(self) -> dict[str, Any]:
        """Raises TypeError: a copy, or what pickle makes, would have no part in the exchange."""
        raise TypeError(f"a {type(self).__name__} has no copy; copy its `inner`, or save state_dict()")

    @classmethod
    def check(cls, optimizer: Any, model: Any, group: object, sharded: str) -> None:
        """Raises ValueError, naming the call that works, for arguments that are no optimizer, no model, or no process
        group, for a model whose gradients DDP averages, and for shards, where `sharded` says what to do with them."""
        call = f"gw.{cls.__name__}(optimizer, model, gw.TopK(0.01))"
        check_type(cls.argument, optimizer, (Optimizer,), f"SGD(...) in {call}", optional=False)
        if isinstance(optimizer, Wrapper):
            raise ValueError(f"the optimizer is a {type(optimizer).__name__} already; wrap the optimizer inside it")
        # a model that is not in DDP, which averages gradients itself
        check_type("model", model, (nn.Module,), f"network in {call}", optional=False)
        if any(map(is_ddp, model.modules())):
            raise ValueError(
                f"DistributedDataParallel averages gradients itself; pass gw.{cls.__name__} a model without it, or use "
                "gw.attach(ddp, gw.TopK(0.01))"
            )
        # nor shards, which rank 0's would overwrite
        if sharded and any(map(is_sharded, [*model.parameters(), *held_by(optimizer)])):
            raise ValueError(f"parameters are sharded, which gw.{cls.__name__} would take for whole ones; {sharded}")
        check_type("process_group", group, (dist.ProcessGroup,), "torch.distributed.new_group()")
