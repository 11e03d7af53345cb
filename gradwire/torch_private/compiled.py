"""Models and modules inside of the wrappers of torch.compile and of activation checkpointing."""

from collections.abc import Iterator

from torch import Tensor, nn

from gradwire.torch_private.fully_shard import is_fsdp
from gradwire.torch_private.reducer import is_ddp

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that torch.compile wrapped, whose hooks it calls. A copy of DDP stands for itself: its own
    no_sync() says whether it reduces."""
    return model if is_ddp(model) or is_fsdp(model) else getattr(model, "_orig_mod", model)


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The model's parameters by the names that they have without wrappers, as torch.distributed.checkpoint has them:
    rules, plans and states hold for the model compiled or not."""
    return ((_unwrapped(name), parameter) for name, parameter in model.named_parameters())


def named_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The model's buffers, named in the same way."""
    return ((_unwrapped(name), buffer) for name, buffer in model.named_buffers())


def _unwrapped(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
