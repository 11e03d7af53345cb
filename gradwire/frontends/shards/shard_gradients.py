"""A rank's shards of gradients, as FSDP2 keeps them."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gradwire.frontends.hooks.gradient_access import GradientAccess
from gradwire.frontends.values import is_sharded, local, or_zero
from gradwire.torch_private.fully_shard import (
    TimesReplicas,
    fsdp_accumulates,
    fsdp_is_hooked,
    fsdp_sums,
    has_whole_gradients,
    offloaded_in,
    parameters_of_fsdp,
    wait_for_copy,
)


class ShardedGradients(GradientAccess):
    """Access to this rank's shards of gradients. FSDP averages over shards, or sums where the user gave it a factor;
    then replicas are summed, too. An empty shard is a single zero."""

    def __init__(self, groups: Sequence[Any], replicas: int) -> None:
        self._group: dict[Tensor, Any] = {
            parameter: group for group in groups for parameter in parameters_of_fsdp(group)
        }
        self._offloaded = {parameter: own for group in groups for parameter, own in offloaded_in(group).items()}
        self._groups, self._summed = groups, [group for group in groups if fsdp_sums(group)]
        self._replicas = replicas

    def hook_in(self, parameters: Iterable[Tensor]) -> Sequence[TimesReplicas]:
        # so that means over replicas are sums; what p.grad has of earlier backward passes is one already. All groups
        # or none: hooked ones end on a stream of their own, and an exchange waits for that of its last gradient alone
        hooked = self._summed or any(fsdp_is_hooked(group) for group in self._groups)
        return [TimesReplicas(group, self._replicas) for group in self._groups] if hooked else []

    def gradient(self, parameter: Tensor) -> Tensor | None:
        if fsdp_sums(group := self._group[parameter]) and group not in self._summed:
            raise ValueError(
                "FSDP divides by a factor that is not known here; call set_gradient_divide_factor() before attach()"
            )
        if parameter in self._offloaded:
            wait_for_copy(self._offloaded[parameter])
        return None if parameter.grad is None else local_of(parameter.grad)

    def left(self, parameter: Tensor) -> Tensor:
        gradient = self.gradient(parameter)
        return torch.zeros_like(local_of(parameter)) if gradient is None else gradient.clone()

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        assert is_sharded(parameter)
        # a rank whose shard is empty has a slot of one element
        own = gradient if parameter.to_local().numel() else torch.zeros_like(parameter.to_local())
        parameter.grad = DTensor.from_local(
            own, parameter.device_mesh, parameter.placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip

    def accumulates(self, parameter: Tensor) -> bool:
        return fsdp_accumulates(self._group[parameter])

    def has_accumulated(self) -> bool:
        return has_whole_gradients(self._groups)


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, without autograd; a single zero where it is empty."""
    return or_zero(local(tensor).detach())
