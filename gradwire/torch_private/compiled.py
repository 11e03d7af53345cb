"""Models that torch.compile wrapped, and those that Accelerate has copied to compile parts of them."""

from torch import nn

from gradwire.torch_private.fully_shard import is_fsdp
from gradwire.torch_private.reducer import is_ddp


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that torch.compile wrapped, whose hooks it calls. A copy of DDP stands for itself: its own
    no_sync() says whether it reduces."""
    return model if is_ddp(model) or is_fsdp(model) else getattr(model, "_orig_mod", model)
