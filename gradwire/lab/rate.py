"""A learning rate for controllers that are made before the optimizer."""

from torch.optim import Optimizer


class Rate:
    """A scheduler's interface to the learning rate of an optimizer that is made later; 0 without one."""

    optimizer: Optimizer | None = None

    def get_last_lr(self) -> list[float]:
        return [self.optimizer.param_groups[0]["lr"] if self.optimizer else 0.0]
