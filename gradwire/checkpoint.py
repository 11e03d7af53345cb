"""State dicts of tensors only, by parameter name, and their way to another number of ranks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.slots import Slot

StateDict = dict[str, Tensor]
"""{"step": int64 (), "<parameter>//<name>": tensor}: safe for `torch.load(weights_only=True)`, DCP and others.
Without a parameter, "//<name>", is what belongs to the job. Names that begin with "shared/" or "group/" are of small
tensors that are equal on all ranks; the others are of gradient size and this rank's own."""

SEPARATOR, STEP = "//", "step"
COMMON = ("shared/", "group/")

Exported = Mapping[str, Mapping[str, Tensor]]
"""By parameter and name."""


@dataclass(frozen=True)
class Unpacked:
    """A state dict that was read: what is kept for each parameter, and what belongs to the job."""

    exported: dict[str, dict[str, Tensor]]
    job: dict[str, Tensor]
    step: int

    def check(self, slots: Sequence[Slot], others: Collection[str]) -> None:
        """Raises ValueError, naming it, for a parameter that the model lacks or has in another shape. `others` are
        parameters of the model that are not reduced; of these nothing is taken over."""
        shapes = {slot.name: slot.shape for slot in slots}
        for name in others:
            self.exported.pop(name, None)
        for name, tensors in self.exported.items():
            if name not in shapes:
                raise ValueError(f"the state has parameter {name!r}, which the model lacks; load what this model saved")
            for key, tensor in tensors.items():
                if not key.startswith(COMMON) and tuple(tensor.shape) != shapes[name]:
                    raise ValueError(
                        f"the state's {key} of {name!r} is {tuple(tensor.shape)}, and the parameter {shapes[name]}; "
                        "load what this model saved"
                    )


def pack(exported: Exported, job: Mapping[str, Tensor], step: int) -> StateDict:
    """A copy of all this as a state dict."""
    everything = {**exported, "": job}
    packed = {
        f"{parameter}{SEPARATOR}{name}": tensor.detach().clone()
        for parameter, tensors in everything.items()
        for name, tensor in tensors.items()
    }
    return {STEP: torch.tensor(step)} | packed


def unpack(state: Mapping[str, Tensor]) -> Unpacked:
    """The inverse of `pack`. Raises ValueError for what is no such state."""
    if STEP not in state:
        raise ValueError("this is no Gradwire state (it has no 'step'); pass what handle.state_dict() returned")
    exported: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        parameter, separator, name = key.partition(SEPARATOR)
        if separator:
            exported.setdefault(parameter, {})[name] = tensor
        elif key != STEP:
            raise ValueError(f"this is no Gradwire state (what is {key!r}?); pass what handle.state_dict() returned")
    return Unpacked(exported, exported.pop("", {}), int(state[STEP]))


def reshard(states: Sequence[StateDict], world: int) -> list[StateDict]:
    """The states of all ranks of one job as those of a job with `world` ranks.

    What memories hold adds up over the ranks, so old rank r's goes to new rank r mod world, and ranks that get
    none start with empty memories; what is equal on all ranks stays so. Nothing is lost: the sum over the
    ranks of every residual is the same before and after.
    """
    keys = {key: tensor for state in states[::-1] for key, tensor in state.items()}
    shards: list[StateDict] = []
    for rank in range(world):
        shard: StateDict = {}
        for key, like in keys.items():
            if key == STEP or _is_common(key):
                shard[key] = like.clone()
            else:
                mine = [state[key] for state in states[rank::world] if key in state]
                shard[key] = sum(mine, torch.zeros_like(like))
        shards.append(shard)
    return shards


def _is_common(key: str) -> bool:
    parameter, _, name = key.partition(SEPARATOR)
    return not parameter or name.startswith(COMMON)
