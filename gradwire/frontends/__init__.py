"""Front ends: how gradients come from a framework to the runtime, and means back."""

from gradwire.frontends.attach import attach
from gradwire.frontends.handle import Handle
from gradwire.frontends.local_steps import LocalSteps, Outer
from gradwire.frontends.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer", "Handle", "LocalSteps", "Outer", "attach"]
