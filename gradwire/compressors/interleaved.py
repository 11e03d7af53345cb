"""Two codecs in turn over one memory."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.compressors.all_dimension import AllDimensionTopK
from gradwire.compressors.compressor import LONGEST_PERIOD, Codec
from gradwire.compressors.context import Parts
from gradwire.compressors.sparse import TopK
from gradwire.ops.lazy_sum import LazySum
from gradwire.ops.mean import Mean
from gradwire.slots import Layout


def _of_codecs(name: str, holds: Callable[[Iterable[bool]], bool]) -> property:
    """A property that combines those of this name of both codecs."""
    return property(lambda self: holds(getattr(codec, name) for codec in (self.first, self.second)))


@dataclass(frozen=True)
class Interleaved(Codec):
    """Two codecs in turn: `first` at every step but the last of each `period`, which is `second`'s (ADTopk, HPDC 2024,
    https://doi.org/10.1145/3625549.3658678, interleaves all-dimension and global top-k).

    Both work on the same residual: what one of them leaves, the other may send. All ranks count the same steps, so they
    agree on the codec, and a step's payload has the size of that codec's.
    """

    first: Codec = field(default=AllDimensionTopK())
    """Of every step but the last of each period."""
    second: Codec = field(default=TopK())
    """Of the last step of each period."""
    period: int = 2  # pyright: ignore[reportIncompatibleVariableOverride]
    divisible = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.period <= LONGEST_PERIOD:
            raise ValueError(
                f"period={self.period} gives one of the two no turn for long; use 2 to {LONGEST_PERIOD}, e.g. period=2"
            )
        # both work on one residual
        for codec in (self.first, self.second):
            if codec.sign_vote or (not codec.biased and (codec.sparse or (codec.coarse and self.biased))):
                raise ValueError(f"{codec} works without memory, and the two share one; interleave e.g. TopK()")
            # by one count of steps, of which another Interleaved would miss some
            if isinstance(codec, Interleaved):
                raise ValueError(
                    "Interleaved takes turns by the number of the step, and so does the one inside it; "
                    "interleave two others, e.g. Interleaved(AllDimensionTopK(), TopK(), period=3)"
                )
        # and state of their own
        if shared := self.first.state_names & self.second.state_names:
            raise ValueError(
                f"{self.first} and {self.second} would both keep {', '.join(sorted(shared))}, of which there is one; "
                "interleave two of other classes, e.g. Interleaved(AllDimensionTopK(), TopK())"
            )

    # true of this codec if it is true of either of the two, or of both
    biased = _of_codecs("biased", any)  # pyright: ignore[reportAssignmentType]
    local_arithmetic = _of_codecs("local_arithmetic", any)  # pyright: ignore[reportAssignmentType]
    coarse = _of_codecs("coarse", any)  # pyright: ignore[reportAssignmentType]
    multiplies = _of_codecs("multiplies", any)  # pyright: ignore[reportAssignmentType]
    sparse = _of_codecs("sparse", all)  # pyright: ignore[reportAssignmentType]
    sized_by_elements = _of_codecs("sized_by_elements", all)  # pyright: ignore[reportAssignmentType]
    recordable = _of_codecs("recordable", all)  # pyright: ignore[reportAssignmentType]

    @property
    def summable(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        same = self.first.wire_dtype == self.second.wire_dtype
        return self.first.summable and self.second.summable and same

    def phase(self, step: int) -> int:
        return self.turn(step).phase(step) * self.period + super().phase(step)

    @property
    def wire_dtype(self) -> torch.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.first.wire_dtype

    @property
    def flat_state(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(dict.fromkeys((*self.first.flat_state, *self.second.flat_state)))

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        # the state of both
        mine = (codec.init_slot(rows, columns, generator) for codec in (self.first, self.second))
        return {name: tensor for tensors in mine for name, tensor in tensors.items()}

    def init_group(self) -> dict[str, Tensor]:
        return self.first.init_group() | self.second.init_group()

    def turn(self, step: int) -> Codec:
        """The codec of a step."""
        return self.second if step % self.period == self.period - 1 else self.first

    def payload_bytes(self, n: int) -> int:
        return max(self.first.payload_bytes(n), self.second.payload_bytes(n))

    def group_bytes(self, layout: Layout, step: int) -> int:
        return self.turn(step).group_bytes(layout, step)

    def encode(self, vector: LazySum, payloads: Tensor, parts: Parts) -> None:
        self.turn(parts.context.step).encode(vector, self._used(payloads, parts), parts)

    def decode(self, payloads: Tensor, mean: Mean, parts: Parts) -> None:
        self.turn(parts.context.step).decode(self._used(payloads, parts), mean, parts)

    def _used(self, payloads: Tensor, parts: Parts) -> Tensor:
        """The bytes of payloads (..., ≥ bytes) that this step fills."""
        return payloads[..., : self.group_bytes(parts.context.layout, parts.context.step)]
