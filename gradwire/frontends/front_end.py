"""The interface of front ends, such as those of DDP, FSDP2 and local steps, by which a `Handle` calls them."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec


class FrontEnd(Protocol):
    """A framework's side of a job: submits gradients to the runtime, and has the framework reduce by itself where
    the plan is native."""

    def unhook(self) -> None:
        """Submits no more gradients."""
        ...

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """A context whose backward passes' gradients are neither sent nor kept."""
        ...

    def skip(self) -> None:
        """Takes back the last step, on all ranks. Raises ValueError where a step cannot be taken back."""
        ...

    def placed(self) -> Mapping[str, ShardSpec]:
        """Where the parameters lie on the mesh of all ranks."""
        ...

    def held(self) -> Mapping[str, Tensor]:
        """This rank's part of the parameters, equal on all ranks that hold the same part."""
        ...

    def healed(self, names: Collection[str]) -> None:
        """Called when this rank has got the right values of these parameters: updates what is derived from them."""
