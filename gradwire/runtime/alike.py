"""What rank 0 has and all are to have alike, such as an optimizer's state: told by broadcasts, without pickle."""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradwire.ops.host import on_host, to_device
from gradwire.transports import Mesh

Tree = Any
"""Tensors, numbers, texts and None, in dictionaries, lists and tuples."""


def from_first(tree: Tree, mesh: Mesh, device: torch.device) -> Tree:
    """Rank 0's tree, on all ranks, which call this together; what was not on its host lies on each one's `device`.

    Raises ValueError, on all ranks, where something else is in it."""
    tensors: list[Tensor] = []
    said = _said(tree, tensors) if mesh.rank == 0 else ""
    read = json.loads(_text_from_first(said, mesh, device))
    if isinstance(read, str):
        raise ValueError(read)
    own = iter(tensors)

    def tensor(dtype: str, shape: list[int], host: bool) -> Tensor:
        """The next one of rank 0's."""
        mine = next(own) if mesh.rank == 0 else torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
        given = mine.detach().to(device, copy=True).contiguous()
        mesh.share([given], device)
        return given.cpu() if host else given

    return _read(read[0], tensor)


def _said(tree: Tree, tensors: list[Tensor]) -> str:
    """The tree as JSON, or what is wrong with it."""
    try:
        return json.dumps([_plain(tree, tensors)])
    except ValueError as error:
        return json.dumps(str(error))


def _text_from_first(text: str, mesh: Mesh, device: torch.device) -> str:
    letters = torch.tensor(list(text.encode()), dtype=torch.uint8, device="cpu")
    length = to_device(torch.tensor([len(letters)], dtype=torch.int64, device="cpu"), device)
    mesh.share([length], device)
    told = torch.zeros(int(length), dtype=torch.uint8, device="cpu")
    told[: len(letters)] = letters
    told = to_device(told, device)
    mesh.share([told], device)
    return bytes(told.tolist()).decode()


def _plain(tree: Tree, tensors: list[Tensor]) -> Any:
    """The tree as JSON can say it. Of its tensors, which are added to `tensors`, that says the kind."""
    match tree:
        case Tensor():
            if tree.layout != torch.strided or tree.is_quantized or tree.is_meta:
                raise ValueError(
                    "a sparse, quantized or meta tensor in a state cannot be told to other ranks; make it dense"
                )
            tensors.append(tree)
            return {"tensor": [str(tree.dtype).removeprefix("torch."), list(tree.shape), on_host(tree.device)]}
        case dict():
            return {"dict": [[_plain(key, tensors), _plain(tree[key], tensors)] for key in tree]}  # pyright: ignore
        case list():
            return [_plain(value, tensors) for value in tree]  # pyright: ignore
        case tuple():
            return {"tuple": [_plain(value, tensors) for value in tree]}  # pyright: ignore
        case None | bool() | int() | float() | str():
            return tree
        case _:
            raise ValueError(
                f"a {type(tree).__name__} in a state cannot be told to other ranks; tensors and numbers can"
            )


def _read(plain: Any, tensor: Callable[[str, list[int], bool], Tensor]) -> Tree:
    """The inverse of `_plain`."""
    if isinstance(plain, list):
        return [_read(value, tensor) for value in plain]  # pyright: ignore
    if not isinstance(plain, dict):
        return plain
    (kind, value), *_ = plain.items()  # pyright: ignore
    if kind == "tensor":
        return tensor(*value)  # pyright: ignore
    if kind == "tuple":
        return tuple(_read(each, tensor) for each in value)  # pyright: ignore
    return {_read(key, tensor): _read(each, tensor) for key, each in value}  # pyright: ignore
