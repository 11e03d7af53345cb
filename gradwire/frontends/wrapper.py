"""An optimizer around another one."""

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire.options import check_type


class Wrapper(Optimizer):
    """An optimizer around `inner`, whose own methods and attributes, such as `train()` and `eval()` of a schedule-free
    one, are found here as well."""

    inner: Optimizer | None = None

    def __getattr__(self, name: str) -> Any:
        """The attribute of `inner`, except torch's private ones, which begin with "_"."""
        if self.inner is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    def _load_inner(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of `inner`, whose groups and state are this one's too."""
        assert self.inner is not None
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    @classmethod
    def check(cls, optimizer: object, model: Any, group: object) -> None:
        """Raises ValueError, naming the call that works, for arguments that are no optimizer, no model, or no process
        group, and for a model whose gradients DDP averages."""
        call = f"gw.{cls.__name__}(optimizer, model, gw.TopK(0.01))"
        check_type("optimizer", optimizer, (Optimizer,), f"SGD(...) in {call}", optional=False)
        if isinstance(optimizer, Wrapper):
            raise ValueError(f"the optimizer is a {type(optimizer).__name__} already; wrap the optimizer inside it")
        # a model that is not in DDP, which averages gradients itself
        check_type("model", model, (nn.Module,), f"network in {call}", optional=False)
        if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            raise ValueError(
                f"DistributedDataParallel averages gradients itself; pass gw.{cls.__name__} a model without it, or use "
                "gw.attach(ddp, gw.TopK(0.01))"
            )
        check_type("process_group", group, (dist.ProcessGroup,), "torch.distributed.new_group()")
