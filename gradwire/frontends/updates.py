"""Refusals of compressors that decode updates, such as Dion, where means of gradients are needed."""

from collections.abc import Iterable

from torch import Tensor

from gradwire.frontends.values import is_sharded
from gradwire.plans import Plan


def check_means(plan: Plan, why: str) -> None:
    """Raises ValueError, which says `why`, for a plan whose compressors decode updates."""
    for group in plan.groups:
        if group.compressor.is_update:
            raise ValueError(f"{group.compressor} makes updates of gradients, and {why}; use e.g. PowerSGD(1 / 6)")


def check_unsharded(plan: Plan, parameters: Iterable[Tensor]) -> None:
    """Raises ValueError for a plan that makes updates of whole matrices, of which a rank has shards."""
    if any(map(is_sharded, parameters)):
        check_means(plan, "FSDP2's ranks have shards of a matrix each")
