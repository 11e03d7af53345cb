"""Front ends: how gradients come from a framework to the runtime, and means back."""

from gradwire.frontends.attach import attach
from gradwire.frontends.checkpoints.rendezvous import Rendezvous
from gradwire.frontends.handle import Handle
from gradwire.frontends.init import init
from gradwire.frontends.local_steps.local_optimizer import LocalSteps, Outer
from gradwire.frontends.local_steps.sign_descent import SignDescent
from gradwire.frontends.optimizer import DistributedOptimizer
from gradwire.frontends.shards.shard_compression import compress_shards

__all__ = [
    "DistributedOptimizer",
    "Handle",
    "LocalSteps",
    "Outer",
    "Rendezvous",
    "SignDescent",
    "attach",
    "compress_shards",
    "init",
]
