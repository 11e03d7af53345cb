"""Two nested levels of one sparsifier, of which each step sends the one that holds enough."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.collective import Gather, Sum
from gradwire.compressors.base import Codec, Reduction, Rounds, State
from gradwire.compressors.select import top_k
from gradwire.compressors.sparse import RandomK, Sparse, TopK

DENSE, FIRST, SECOND = range(3)


@dataclass(frozen=True)
class MultiLevel(Rounds):
    """Selects with `codec`, selects further from what that selected, and sends the second level where it holds at
    least `min_energy` of the square norm of gradient and residual, else the first where that does, else everything
    (multi-level compression: Tyagi and Swany, GraVAC, IEEE CLOUD 2023, https://arxiv.org/abs/2305.12201).

    The second level has `further` times fewer elements, the largest of the first's: for `TopK` exactly those that
    it would have selected alone. `RandomK`'s elements are not nested; both levels are drawn from the whole.

    The levels' square norms are summed over the ranks before one of them travels: a message of 24 bytes that makes
    all ranks choose alike. On CUDA the host waits for it.
    """

    codec: Codec = field(default=TopK(0.1))
    further: float = 10.0
    min_energy: float = 0.02
    rounds: ClassVar[int] = 2
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Sparse | RandomK) or not self.codec.biased:
            raise ValueError(
                f"MultiLevel() sends a part of what a sparsifier selects, and {self.codec} is none that goes with a "
                "memory; use e.g. MultiLevel(TopK(0.1), further=10)"
            )
        if not self.further >= 1:
            raise ValueError(f"further={self.further} sends more at the second level; use 1 or more, e.g. further=10")
        if not 0 <= self.min_energy <= 1:
            raise ValueError(f"min_energy={self.min_energy} is no share; it lies in [0, 1], e.g. min_energy=0.02")

    @property
    def flat_state(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.codec.flat_state

    @property
    def second(self) -> Codec:
        """The second level's codec."""
        codec: Any = self.codec
        return replace(codec, ratio=codec.ratio / self.further)

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        return self.codec.init_slot(rows, columns, generator) | {"sent": torch.zeros(2)}

    def undo(self, x: Tensor, state: State, skip: Tensor) -> None:
        self.codec.undo(x, state, skip)

    def reduce(self, x: Tensor, state: State) -> Reduction:
        first, second = self.encode(x, state)
        sums = state.kept.tensor("sums", (6,))
        torch.cat([self.observed(state), state.flag], out=sums)
        yield Sum(sums)
        state.settle(sums[5:])
        level = self._level(sums)
        mean = state.kept.tensor("mean", (len(x),))
        if level == DENSE:
            return (yield Sum(mean.copy_(x)))
        codec, payload = (self.codec, first) if level == FIRST else (self.second, second)
        if codec.summable:
            total = state.kept.tensor("total", (len(payload) // 4,)).copy_(payload.view(torch.float32))
            rows = (yield Sum(total)).view(torch.uint8)[None]
        else:
            rows = yield Gather(payload, state.kept.tensor("receive", (state.world, len(payload)), torch.uint8))
        codec.decode(rows, mean, state)
        return mean

    def encode(self, x: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The payloads of both levels of x (n,); what they hold is in `observed`."""
        first, second = self._payloads(len(x), state)
        self.codec.encode(x, first, state)
        if self.further == 1:
            second.copy_(first)
        else:
            self.encode_second(x, first, second, state)
        levels = [_values(self.codec, first, len(x)), _values(self.second, second, len(x))]
        energies = [torch.dot(values, values) for values in (x, *levels)]
        counts = [values.count_nonzero() for values in levels]
        state.kept.tensor("observed", (5,)).copy_(torch.stack([*energies, *counts]))
        return first, second

    def observed(self, state: State) -> Tensor:
        """Of this rank and step, (5,): the square norms of x, first and second level, both levels' element counts."""
        return state.kept.tensor("observed", (5,))

    def sent(self, state: State) -> Tensor:
        """Of the step before, per rank, (2,): the square norm of what was sent, and its elements."""
        return state.slots[0]["sent"]

    def commit(self, x: Tensor, state: State) -> None:
        sums = state.kept.tensor("sums", (6,))
        level = self._level(sums)
        sent = state.slots[0]["sent"]
        sent[0] = sums[level] / state.world
        sent[1] = len(x) if level == DENSE else sums[2 + level] / state.world
        if not state.remember:
            return
        if level == DENSE:
            x.mul_(state.verdict.ne(0))
            return
        codec = self.codec if level == FIRST else self.second
        codec.commit(self._payloads(len(x), state)[level - 1], x, state)

    def _level(self, sums: Tensor) -> int:
        whole, first, second, *_ = sums.tolist()
        least = self.min_energy * whole
        return SECOND if second >= least else FIRST if first >= least else DENSE

    def _payloads(self, n: int, state: State) -> tuple[Tensor, Tensor]:
        first, second = self.codec.payload_bytes(n), self.second.payload_bytes(n)
        both = state.kept.tensor("levels", (first + second,), torch.uint8)
        return both[:first], both[first:]

    def encode_second(self, x: Tensor, first: Tensor, second: Tensor, state: State) -> None:
        """Writes the second level's payload, from the first's where levels are nested."""
        fewer = self.second
        if not (isinstance(self.codec, Sparse) and isinstance(fewer, Sparse)):
            return fewer.encode(x, second, state)
        layout = self.codec.layout(len(x))
        chosen = top_k(layout.values(first), fewer.count(len(x)), state.scratch)
        fewer.layout(len(x)).pack(second, *layout.pick(first, chosen))


def _values(codec: Codec, payload: Tensor, n: int) -> Tensor:
    """A view of the values in the payload of n elements."""
    return codec.layout(n).values(payload) if isinstance(codec, Sparse) else payload.view(torch.float32)
