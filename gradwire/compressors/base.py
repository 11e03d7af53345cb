"""What a compressor is: hyperparameters, and how they turn a gradient into bytes and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gradwire.collective import Collective
from gradwire.layout import Layout

T = TypeVar("T")
Reduction = Generator[Collective, Tensor, Tensor | list[Tensor]]
"""Yields collectives, is sent their results, returns the mean, bit for bit the same on every rank: (n,), or the list of
`State.sinks` when it was written there."""


class Workspace:
    """Tensors that are made once and kept by name, so that nothing of gradient size is allocated per step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: dict[str, Tensor] = {}
        self._made: dict[Hashable, Any] = {}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor kept as `name`, seen in this shape; it holds what was last written to it."""
        numel = prod(shape)
        kept = self._tensors.get(name)
        if kept is None or kept.numel() < numel or kept.dtype != dtype:
            kept = self._tensors[name] = torch.zeros(numel, dtype=dtype, device=self.device)
        return kept[:numel].view(shape)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when it was first called for `key`: the views of a whole group, say."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies many small tensors in one call."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))  # pyright: ignore[reportPrivateImportUsage]


@dataclass
class State:
    """All that an algorithm may read and write for one group; owned by the engine.

    `flat` holds tensors with one element per gradient element (n,), `slots` each slot's other tensors, equal
    on all ranks; both go into checkpoints and through new plans parameter by parameter. `kept` lasts as long
    as the group, `scratch` until the next yield.

    `remember` says that a memory wants what was sent taken out of x. `flag` (1,) is NaN where this rank's
    gradient was not finite, else 0; algorithms send it along with their first collective and pass the sum to
    `settle`. When any group's verdict is NaN, all ranks skip the step for all groups: nothing is committed.

    `sinks`, where there are any, are where the slots' means are wanted, (numel,) each; algorithms may write them there
    instead of into memory of their own, if they do not read them in `commit`: they are somebody else's by then.
    """

    layout: Layout
    rank: int
    world: int
    kept: Workspace
    scratch: Workspace
    remember: bool = True
    seed: int = 0
    step: int = 0
    draws: int = 0
    flat: dict[str, Tensor] = field(default_factory=dict)
    slots: list[dict[str, Tensor]] = field(default_factory=list)
    flag: Tensor = field(init=False)
    verdict: Tensor = field(init=False)
    sinks: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flag = torch.zeros(1, device=self.kept.device)
        self.verdict = torch.zeros(1, device=self.kept.device)

    def shared_seed(self) -> int:
        """Changes with every step and is the same on all ranks."""
        return (self.seed * 1_000_003 + self.step) & 0x7FFF_FFFF_FFFF_FFFF

    def own_seed(self) -> int:
        """Changes with every call, step and rank: noise that is used twice makes what is unbiased biased."""
        self.draws += 1
        mine = self.shared_seed() * 1_000_003 + self.rank + 1
        return (mine * 1_000_003 + self.draws) & 0x7FFF_FFFF_FFFF_FFFF

    def settle(self, flags: Tensor) -> None:
        """Takes the sum of all ranks' flags (1,): NaN when any rank's gradient was not finite."""
        self.verdict.copy_(flags)

    @property
    def skipped(self) -> bool:
        """Whether all ranks skip this step. On CUDA always False: there, masks spare the host the question."""
        return self.verdict.device.type == "cpu" and bool(self.verdict.isnan())

    def take(self, x: Tensor, sent: Tensor) -> None:
        """x -= sent; on CUDA, where nobody asks whether the step is skipped, by nothing if it is."""
        x.sub_(self._unless_skipped(sent))

    def release(self, x: Tensor, indices: Tensor, values: Tensor) -> None:
        """x[indices] -= values, with repeated indices added up; on CUDA by nothing where the step is skipped."""
        x.index_add_(0, indices, self._unless_skipped(values), alpha=-1)

    def _unless_skipped(self, sent: Tensor) -> Tensor:
        # not a product: a skipped step's mean is NaN, and so is 0 times NaN
        return sent if sent.device.type == "cpu" else sent.masked_fill(self.verdict.isnan(), 0)


class Compressor(ABC):
    """A frozen dataclass of hyperparameters. To change one: `dataclasses.replace(compressor, ratio=0.1)`.

    `biased` compressors drop what they do not send and want a memory. `sparse` ones send some coordinates
    exactly and none of the others. Those that `carries_dense` send biases and norm scales as they are beside the
    rest, so that these need no group of their own. Those that fill `State.sinks` say so. `flat_state` names tensors of
    gradient size that the algorithm keeps. Steps may differ in the bytes that they send; `period` of them in a row are
    as many as any others.
    """

    biased: ClassVar[bool] = True
    period: ClassVar[int] = 1
    sparse: ClassVar[bool] = False
    carries_dense: ClassVar[bool] = False
    fills_sinks: ClassVar[bool] = False
    flat_state: ClassVar[tuple[str, ...]] = ()

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        """The tensors of other than gradient size that this algorithm keeps for a (rows, columns) slot."""
        return {}

    def undo(self, x: Tensor, state: State, skip: Tensor) -> None:  # noqa: B027
        """Takes back what this step's x (n,) did to `state.flat` where skip () is 1."""


class Codec(Compressor):
    """A compressor that turns n numbers into a fixed count of bytes without talking to anybody.

    The payload's size does not depend on the numbers, so that what is declared is what is sent. `summable`
    payloads are vectors of `wire_dtype` that may be all-reduced. A codec that is not `divisible` encodes whole
    groups only: it looks at their slots, or does not do the same at every step.
    """

    summable: ClassVar[bool] = False
    divisible: ClassVar[bool] = True
    wire_dtype: ClassVar[torch.dtype] = torch.float32

    @abstractmethod
    def payload_bytes(self, n: int) -> int:
        """Bytes that `encode` writes for n elements of a single vector, at most, where steps differ; a multiple
        of 4 where the payload holds float32."""

    def group_bytes(self, layout: Layout, step: int) -> int:
        """Bytes that `encode` writes for a whole group at this step, the same on all ranks."""
        return self.payload_bytes(layout.numel)

    def prepare(self, x: Tensor, state: State) -> Tensor:
        """What is encoded instead of x (n,); x itself unless the algorithm filters it first."""
        return x

    @abstractmethod
    def encode(self, x: Tensor, payload: Tensor, state: State) -> None:
        """Reads x (n,) float32 and writes payload (payload_bytes(n),) uint8; x stays as it is."""

    @abstractmethod
    def decode(self, rows: Tensor, out: Tensor, state: State) -> None:
        """Writes the sum of what rows (r, payload_bytes(n)) stand for into out (n,)."""

    @abstractmethod
    def commit(self, payload: Tensor, x: Tensor, state: State) -> None:
        """Takes out of x (n,), through `state.take`, what `payload` stands for, at the end of the step. Of
        summable codecs the payload is lost by then, and they find it again from x."""


class Rounds(Compressor):
    """A compressor with `rounds` collectives of its own: a two-round algorithm reads like its paper."""

    rounds: ClassVar[int]

    @abstractmethod
    def reduce(self, x: Tensor, state: State) -> Reduction:
        """Reduces x (n,) over the ranks; x stays as it is."""

    @abstractmethod
    def commit(self, x: Tensor, state: State) -> None:
        """Ends the step: takes out of x, where `state.remember`, what this rank sent, and keeps what the next
        step starts from; where the verdict is NaN, neither."""
