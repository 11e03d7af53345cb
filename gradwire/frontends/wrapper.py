"""An optimizer around another one."""

from typing import Any

from torch.optim import Optimizer


class Wrapper(Optimizer):
    """An optimizer around `inner`, whose own methods and attributes, such as `train()` and `eval()` of a schedule-free
    one, are found here as well."""

    inner: Optimizer | None = None

    def __getattr__(self, name: str) -> Any:
        """The attribute of `inner`, except torch's private ones, which begin with "_"."""
        if self.inner is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)
