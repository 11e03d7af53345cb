"""An optimizer around another one."""

from typing import Any

from torch.optim import Optimizer


class Wrapper(Optimizer):
    """An optimizer that does what `inner` does, and more. Methods and attributes of its own that `inner` has, such as
    `train()` and `eval()` of a schedule-free one, are found here as well."""

    inner: Optimizer | None = None

    def __getattr__(self, name: str) -> Any:
        """Where this object has no such attribute. What begins with "_" is torch's business with `inner` alone."""
        if self.inner is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)
