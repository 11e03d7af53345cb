"""State dicts of tensors only, by parameter name, and their way to another number of ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor

StateDict = dict[str, Tensor]
"""{"step": int64 (), "<parameter>//<name>": tensor}: safe for `torch.load(weights_only=True)`, DCP and others."""

SEPARATOR = "//"


def pack(exported: dict[str, dict[str, Tensor]], steps: int) -> StateDict:
    """A copy of an engine's exported state."""
    packed = {
        f"{parameter}{SEPARATOR}{name}": tensor.detach().clone()
        for parameter, tensors in exported.items()
        for name, tensor in tensors.items()
    }
    return {"step": torch.tensor(steps)} | packed


def unpack(state: StateDict) -> tuple[dict[str, dict[str, Tensor]], int]:
    """The inverse of `pack`. Raises ValueError for what is no such state."""
    if "step" not in state:
        raise ValueError("this is no Gradwire state (it has no 'step'); pass what handle.state_dict() returned")
    exported: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        if key != "step":
            parameter, name = key.split(SEPARATOR, 1)
            exported.setdefault(parameter, {})[name] = tensor
    return exported, int(state["step"])


def reshard(states: Sequence[StateDict], world: int) -> list[StateDict]:
    """The states of all ranks of one job as those of a job with `world` ranks.

    What memories hold adds up over the ranks, so old rank r's goes to new rank r mod world, and ranks that get
    none start with empty memories; what is equal on all ranks stays so. Nothing is lost: the sum over the
    ranks of every residual is the same before and after.
    """
    shards: list[StateDict] = []
    for rank in range(world):
        mine = states[rank::world]
        shard = {"step": states[0]["step"].clone()}
        for key, like in states[0].items():
            if key == "step" or "shared/" in key.split(SEPARATOR, 1)[1]:
                shard[key] = like.clone()
            else:
                shard[key] = sum((state[key] for state in mine), torch.zeros_like(like))
        shards.append(shard)
    return shards
