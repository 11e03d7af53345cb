"""Parameters that need a gradient which DDP does not reduce: those that were frozen, or not there, when it was made."""

import logging
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch_private.reducer import delayed_by, ignored_by

_log = logging.getLogger("gradwire")


def warns_of_unreduced(
    ddp: DistributedDataParallel, named: Mapping[str, Tensor], managed: Collection[Tensor]
) -> Callable[..., None]:
    """A hook for forward passes. It warns once of parameters, among those `named`, that need a gradient and are not in
    DDP's buckets, which have the `managed` ones: their replicas become different, as with plain DDP. Parameters that
    DDP was told to ignore or to delay are left out."""
    meant = {*managed, *delayed_by(ddp), *ignored_by(ddp)}
    others = {name: parameter for name, parameter in named.items() if parameter not in meant}

    def look(*_: object) -> None:
        if not torch.is_grad_enabled():
            return
        if local := [name for name, parameter in others.items() if parameter.requires_grad]:
            others.clear()
            _log.warning(
                "DDP does not reduce parameter %r%s, which was frozen, or not there, when DDP was made: each replica "
                "trains its own; freeze it after DDP(model, find_unused_parameters=True), not before",
                local[0], f" and {len(local) - 1} more" if local[1:] else "",
            )  # fmt: skip

    return look


def left_alone(ddp: DistributedDataParallel | None, named: Mapping[str, Tensor], managed: Collection[Tensor]) -> str:
    """A remark about parameters, among those `named`, that need a gradient and are not in DDP's buckets, which have the
    `managed` ones; or that the DDP is gone."""
    if ddp is None:
        return "its DDP was garbage collected"
    others = {n: p for n, p in named.items() if p.requires_grad and p not in managed}
    delayed = {*delayed_by(ddp)}
    # two kinds: DDP sends some itself, later; the others stay this rank's own
    late = [repr(name) for name, p in others.items() if p in delayed]
    local = [repr(name) for name, p in others.items() if p not in delayed]
    remarks = [f"DDP by itself reduces {', '.join(late)}"] if late else []
    return "; ".join([*remarks, f"DDP does not reduce {', '.join(local)}"] if local else remarks)
