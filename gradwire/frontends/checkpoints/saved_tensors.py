"""The tensors of a checkpoint of torch.distributed.checkpoint, and which of them are a state that is to be loaded."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.storage import StorageReader

from gradwire.text_tensors import text_of

Saved = Mapping[str, TensorStorageMetadata]
"""The tensors of a state in a checkpoint, by key."""


def state_in(
    checkpoint: str | Path | StorageReader | None, key: str | None, marker: tuple[str, ...], states: str, saved: str
) -> dict[tuple[str, ...], TensorStorageMetadata]:
    """The tensors of a checkpoint's only state, or of the one saved under `key`, by their keys inside of its folder,
    among which the `marker` is; none without a checkpoint. Raises ValueError as `_folder_of`."""
    if checkpoint is None and key is not None:
        raise ValueError(
            "key= says which state of a checkpoint to load; pass the checkpoint's path too: stateful(path, key=...)"
        )
    if checkpoint is None:
        return {}
    kinds, depth = _tensors_in(checkpoint), len(marker)
    # the folder in which the state was saved, under whatever name
    folder = _folder_of({path[:-depth] for path in kinds if path[-depth:] == marker}, key, states, saved)
    return {path[-depth:]: kind for path, kind in kinds.items() if path[:-depth] == folder}


def _folder_of(folders: Collection[tuple[str, ...]], key: str | None, states: str, saved: str) -> tuple[str, ...]:
    """The folder of a checkpoint's only state, or of the one that was saved under `key`. Raises ValueError where there
    is none, or several and no key that fits. Errors call them `states`, and show how one is `saved`."""
    # lists have numbers in place of names
    keys = {".".join(map(str, folder)): folder for folder in folders}
    if not keys:
        raise ValueError(f"the checkpoint has 0 {states}; save one, {saved}")
    if key is None and len(keys) == 1:
        return next(iter(folders))
    if key not in keys:
        names = ", ".join(map(repr, sorted(keys)))
        raise ValueError(f"the checkpoint has {len(keys)} {states}, {names}; load stateful(path, key={min(keys)!r})")
    return keys[key]


def _tensors_in(checkpoint: str | Path | StorageReader) -> dict[tuple[str, ...], TensorStorageMetadata]:
    """The tensors of a checkpoint, by their keys from the outermost dictionary on."""
    reader = checkpoint if isinstance(checkpoint, StorageReader) else FileSystemReader(checkpoint)
    try:
        # the description alone, without tensors
        metadata = reader.read_metadata()
    except FileNotFoundError as error:
        raise ValueError(f"{checkpoint} has no checkpoint; pass the folder in which dcp.save() made one") from error
    paths: dict[str, tuple[str, ...]] = metadata.planner_data
    kinds = {path: metadata.state_dict_metadata[key] for key, path in paths.items()}
    return {path: kind for path, kind in kinds.items() if isinstance(kind, TensorStorageMetadata)}


def check_known(saved: Mapping[str, object] | None, owner: str) -> None:
    """Raises ValueError where a state is loaded of which nothing is known; None where it was loaded before."""
    if saved is None:
        raise ValueError(f"this one was loaded already; make another {owner}.stateful(path)")
    if not saved:
        raise ValueError(f"what was saved has to be known to load it; use dcp.load({{...: {owner}.stateful(path)}})")


def said_by(text: Tensor) -> Any:
    """The description that a saved text has, as JSON. Raises ValueError where zeros were saved, before a state was
    loaded into them."""
    if not text.any():
        raise ValueError("stateful(path) was saved before it was loaded, and has no state; save stateful()")
    return json.loads(text_of(text))
