"""Helpers for the adapters: attach to a whole model, replace methods of a framework's objects, and check that these
objects have the attributes that the adapters use."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from gradwire.compressors import Compressor
from gradwire.frontends import Handle, attach
from gradwire.plans import Plan
from gradwire.torch_private.fully_shard import is_cut


def attach_whole(
    model: nn.Module, compressor: Compressor | Plan | str | None, options: Mapping[str, Any], scaler: Any = None
) -> Handle:
    """`gradwire.attach` under a trainer in whose checkpoints rank 0 saves for all ranks, with the trainer's present
    `scaler`, unless the `options` have one. Also raises ValueError for a sharded model, because rank 0 has its own
    shards alone."""
    if is_cut(model):
        raise ValueError(
            "this trainer's checkpoints have no place for the state of shards; use gw.attach(model, ...) and give "
            'dcp.save() {"gradwire": handle.stateful()}'
        )
    return attach(model, compressor, **{"scaler": scaler, **options})


class Replacements:
    """Methods replaced on single objects; `undo` brings the class's back."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str]] = []

    def replace(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Has `owner.name` be `call`."""
        setattr(owner, name, call)
        self._replaced.append((owner, name))

    def undo(self) -> None:
        """Makes all methods their class's again."""
        for owner, name in self._replaced:
            delattr(owner, name)
        self._replaced.clear()


def check_fits(refusals: Mapping[str, bool]) -> None:
    """Raises ValueError with the first of these error messages that applies."""
    for why, applies in refusals.items():
        if applies:
            raise ValueError(why)


def check_unused(options: Mapping[str, Any], unused: Iterable[str], owner: str) -> None:
    """Raises ValueError for an option that was given though `owner`, a framework's object, leaves it `unused`."""
    check_fits({f"{name}= does not go with {owner}; leave it out": bool(options.get(name)) for name in unused})


def check_has(owner: Any, names: Iterable[str], framework: str, tried: str) -> None:
    """Raises ValueError, naming the version of the `framework` that was tried, where `owner` lacks an attribute."""
    if missing := [name for name in names if not hasattr(owner, name)]:
        raise ValueError(f"{framework} has no {missing[0]!r}; install version {tried}")
