"""The parameters of a model whose gradients are reduced, their slots, and their device."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradwire.controllers import Controller
from gradwire.slots import Slot
from gradwire.torch_private.compiled import named_parameters


def parameters_of(
    module: nn.Module, reduces: Callable[[nn.Parameter], bool] = lambda p: p.requires_grad
) -> tuple[dict[str, nn.Parameter], set[str]]:
    """The parameters that are reduced, by name, and the names of the others, including empty ones. Raises ValueError
    where there is none, and where they lie on several devices."""
    # those that need a gradient and have elements
    named = dict(named_parameters(module))
    reduced = {name: p for name, p in named.items() if reduces(p) and p.numel()}
    if not reduced:
        raise ValueError("the model has no parameter that needs a gradient, so there is nothing to reduce")
    # on one device, which the process group's backend must serve
    places = {p.device: name for name, p in reduced.items()}
    if len(places) > 1:
        (one, other), *_ = zip(places.items(), list(places.items())[1:], strict=False)
        raise ValueError(
            f"parameter {one[1]!r} is on {one[0]} and {other[1]!r} on {other[0]}; give each rank one device"
        )
    return reduced, named.keys() - reduced.keys()


def slots_of(parameters: Mapping[str, Tensor]) -> list[Slot]:
    """A slot for each parameter, in the order in which backward is likely to come to them."""
    return [Slot.of(name, parameter) for name, parameter in parameters.items()][::-1]


def device_of(parameters: Mapping[str, nn.Parameter]) -> torch.device:
    """The device of the parameters."""
    return next(iter(parameters.values())).device


def check_decides(controller: Controller | None, slots: Sequence[Slot]) -> None:
    """Raises ValueError for a controller that decides by what it measures, where tensor parallelism has sharded some
    parameters, and each of its ranks has a job of its own and a copy of the others."""
    if controller and controller.numbers and len({slot.cut for slot in slots}) > 1:
        raise ValueError(
            f"each rank of tensor parallelism has a job of its own, whose {type(controller).__name__} would decide by "
            "itself, so that the ranks' copies of unsharded parameters would differ; name a compressor, such as "
            "gw.TopK(0.01), without a controller"
        )
