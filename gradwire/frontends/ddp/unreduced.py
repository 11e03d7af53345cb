"""Parameters that DDP does not reduce by its buckets, though they need a gradient."""

import logging
import weakref
from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch_private.reducer import delayed_by, ignored_by

_log = logging.getLogger("gradwire")


class Unreduced:
    """The `named` parameters that are not in DDP's buckets; the `managed` ones are. Some of them DDP delays, and
    reduces by itself. The others were ignored, frozen or missing when DDP was made: where one needs a gradient, each
    replica trains its own, as with plain DDP."""

    def __init__(self, ddp: DistributedDataParallel, named: Mapping[str, Tensor], managed: Collection[Tensor]) -> None:
        self._ddp = weakref.ref(ddp)
        delayed, ignored = {*delayed_by(ddp)}, ignored_by(ddp)
        others = {name: parameter for name, parameter in named.items() if parameter not in managed}
        self._late = {name: parameter for name, parameter in others.items() if parameter in delayed}
        self._local = {name: parameter for name, parameter in others.items() if parameter not in delayed}
        # replicas of these differ without the user's wish
        self._unwanted = {name: parameter for name, parameter in self._local.items() if parameter not in ignored}

    def warn(self, *_: object) -> None:
        """A hook for forward passes. It warns once of parameters that each replica trains by itself; of those that the
        user has DDP ignore it does not."""
        if not torch.is_grad_enabled():
            return
        if local := _trained(self._unwanted):
            self._unwanted = {}
            _log.warning(
                "DDP does not reduce parameter %r%s, which was frozen, or not there, when DDP was made: each replica "
                "trains its own; freeze it after DDP(model, find_unused_parameters=True), not before",
                local[0], f" and {len(local) - 1} more" if local[1:] else "",
            )  # fmt: skip

    def remark(self) -> str:
        """A remark about those that need a gradient now, "" where none does; or that the DDP is gone."""
        if self._ddp() is None:
            return "its DDP was garbage collected"
        reducers = {"DDP by itself reduces": self._late, "DDP does not reduce": self._local}
        named = {reducer: ", ".join(map(repr, _trained(kept))) for reducer, kept in reducers.items()}
        return "; ".join(f"{reducer} {names}" for reducer, names in named.items() if names)


def _trained(parameters: Mapping[str, Tensor]) -> list[str]:
    return [name for name, parameter in parameters.items() if parameter.requires_grad]
