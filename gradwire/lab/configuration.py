"""What is compared: plain DDP, no communication, or a compressor with a memory and a communicator.

Written as `dense` (or `ddp`), `nocomm`, or `compressor[:value,...][+memory][+communicator]`, such as
`topk:0.01`, `topk:ratio=0.01+residual+allgather`, `powersgd:4`. `@25mb`, `@4` or `@hybrid` after a
compressor say how it groups gradients: up to 25 MB each, 4 groups, or small matrices dense; `dense@25mb` sets DDP's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.ddp import Handle, attach
from gradwire.lab.catalogue import exported
from gradwire.lab.construct import construct, unknown
from gradwire.lab.grouping import Grouping
from gradwire.lab.hybrid import Hybrid
from gradwire.layout import Slot
from gradwire.memory import Memory
from gradwire.plan import Group, default_communicator, default_memory, uniform
from gradwire.transports import Transport

DENSE = ("dense", "ddp")
NOCOMM = "nocomm"


@dataclass(frozen=True)
class Configuration:
    """One way to reduce gradients; without a compressor, plain DDP or nothing at all."""

    text: str
    compressor: Compressor | None = None
    memory: Memory | None = None
    communicator: Communicator | None = None
    grouping: Grouping | Hybrid | None = None

    @property
    def silent(self) -> bool:
        """Whether the ranks do not talk: for measuring what a step costs by itself."""
        return self.text == NOCOMM

    @property
    def bucket_mb(self) -> float | None:
        """The size of DDP's buckets; None for its own."""
        return self.grouping.megabytes if isinstance(self.grouping, Grouping) and not self.compressor else None

    @property
    def slug(self) -> str:
        """The text as a folder's name."""
        return re.sub(r"[^\w.=]+", "-", self.text)

    def attach(self, ddp: DistributedDataParallel, transport: Transport, seed: int) -> Handle | None:
        """Makes a fresh `ddp` reduce in this way; None where Gradwire has no part in it."""
        if self.silent:
            ddp.register_comm_hook(None, noop_hook)
        if self.compressor is None:
            return None
        parts: dict[str, Any] = {"memory": self.memory, "communicator": self.communicator}
        if self.grouping is None:
            return attach(ddp, self.compressor, **parts, transport=transport, seed=seed)
        named = [(name, p) for name, p in ddp.module.named_parameters() if p.requires_grad and p.numel()]
        slots = [Slot.of(name, p) for name, p in reversed(named)]
        plan = self.grouping.regroup(uniform(slots, self.compressor, **parts), slots, self.compressor)
        return attach(ddp, plan, transport=transport, seed=seed)


def parse(text: str) -> Configuration:
    """Reads one configuration.

    Raises ValueError for an unknown name, a value that does not fit, and a pairing that makes no sense."""
    parts, at, groups = text.lower().partition("@")
    grouping = _grouping(groups) if at else None
    head, *others = parts.split("+")
    if head in (*DENSE, NOCOMM):
        if others:
            raise ValueError(f"{head} has no memory and no communicator: write {head} alone, not {text!r}")
        if grouping and (head == NOCOMM or not isinstance(grouping, Grouping) or grouping.megabytes is None):
            raise ValueError(f"{text!r} cannot be: only dense and compressors have groups, those of dense in MB")
        return Configuration(text.lower(), grouping=grouping)
    compressor: Compressor = _make("compressor", head, exported(Compressor), (*DENSE, NOCOMM))
    memory, communicator = _partners(text, others)
    Group((), compressor, memory or default_memory(compressor), communicator or default_communicator(compressor))
    if grouping:
        grouping.check(compressor)
    return Configuration(text.lower(), compressor, memory, communicator, grouping)


def parse_all(texts: Sequence[str]) -> list[Configuration]:
    """Reads configurations that are to be compared. Raises ValueError also for one given twice."""
    configurations = [parse(text) for text in texts]
    seen = [configuration.text for configuration in configurations]
    if twice := next((text for text in seen if seen.count(text) > 1), None):
        raise ValueError(f"configuration {twice!r} is given twice")
    return configurations


def _grouping(text: str) -> Grouping | Hybrid:
    return Hybrid() if text == "hybrid" else Grouping.parse(text)


def _partners(text: str, others: list[str]) -> tuple[Memory | None, Communicator | None]:
    memories, communicators = exported(Memory), exported(Communicator)
    made = [_make("memory or communicator", other, memories | communicators) for other in others]
    kept = [part for part in made if isinstance(part, Memory)]
    carried = [part for part in made if isinstance(part, Communicator)]
    if len(kept) > 1 or len(carried) > 1:
        raise ValueError(f"{text!r} names two {'memories' if len(kept) > 1 else 'communicators'}: keep one")
    return next(iter(kept), None), next(iter(carried), None)


def _make(kind: str, text: str, classes: dict[str, type[Any]], also: tuple[str, ...] = ()) -> Any:
    name, colon, arguments = text.partition(":")
    if name not in classes:
        raise unknown(kind, name, [*classes, *also])
    return construct(classes[name], arguments.split(",") if colon else [], name)
