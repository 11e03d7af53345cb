"""A state's description of itself, as the text that is saved with its tensors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from gradwire.options import Options, names
from gradwire.text_tensors import letters

FORMAT = 1
ABOUT = "about"


@dataclass(frozen=True)
class About(Options):
    """A state's description of itself."""

    rank: int
    """Whose state it is."""
    ranks: int
    """The ranks of the job."""
    plan: str
    """The plan that was in force, as JSON."""
    order: tuple[str, ...] = ()
    """The parameters as their gradients became ready, where that was known."""
    skipped: int = 0
    """Steps that counted for no rank."""
    gathered: bool = False
    """It has the state of all `ranks`; only rank 0 has such a state."""
    shards: int = 1
    """The parts of the model that these ranks hold: several with FSDP2."""
    momenta: Mapping[str, str] = field(default_factory=dict)
    """The compressors, in words, of parameters whose residual is the momentum of updates, in this plan or before."""
    training: str = ""
    """What tells its training from others, through all that resume it; "" in states of earlier versions."""
    shard: str = ""
    """Which shard of the model all of these ranks have, beside tensor parallelism; "" also in states of earlier
    versions."""

    def __str__(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        shard = f" ({self.shard})" if self.shard else ""
        return f"the state of {'all' if self.gathered else f'rank {self.rank}'} of {ranks}{shard}"


def describe(about: About, kinds: Mapping[str, Sequence[Any]]) -> Tensor:
    """The text (n,) uint8 of a description, and of the `kinds` of tensors: checksum, type and shape. It has a checksum
    of its own among them."""
    fields = {"format": FORMAT, **asdict(about), "tensors": kinds}
    return letters(json.dumps(fields | {"tensors": {**kinds, ABOUT: [_digest(fields)]}}))


def read_description(text: Tensor) -> tuple[About, dict[str, tuple[Any, list[Any]]]]:
    """The inverse of `describe`. Raises ValueError and other errors for what is none."""
    if text.dtype != torch.uint8:
        raise ValueError("what it says of itself is no text")
    fields = json.loads(bytes(text.tolist()))
    if fields["format"] != FORMAT:
        raise ValueError("it is of another format")
    # earlier versions wrote no checksum of the description
    own = fields["tensors"].pop(ABOUT, None)
    if own not in (None, [_digest(fields)]):
        raise ValueError("what it says of itself has changed since it was saved")
    # what each tensor was: its checksum, type and shape
    kinds = {key: (checksum, kind) for key, (checksum, *kind) in fields["tensors"].items()}
    shards, training, shard = fields.get("shards", 1), str(fields.get("training", "")), str(fields.get("shard", ""))
    momenta = {name: str(made_by) for name, made_by in fields.get("momenta", {}).items()}
    about = About(
        fields["rank"], fields["ranks"], fields["plan"], names(fields["order"]), fields["skipped"], fields["gathered"],
        shards, momenta, training, shard,
    )  # fmt: skip
    if not (0 <= about.rank < about.ranks and 0 < about.shards <= about.ranks):
        raise ValueError("what it says of itself cannot be")
    return about, kinds


def _digest(fields: Mapping[str, Any]) -> str:
    return sha256(json.dumps(fields).encode()).hexdigest()[:16]
