"""Two nested levels of one sparsifier, of which each step sends the one that holds enough."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from gradwire.collective import Gather, Sum
from gradwire.compressors.base import Codec, Reduction, Rounds, State
from gradwire.compressors.magnitudes import magnitude_sum
from gradwire.compressors.select import top_k
from gradwire.compressors.sparse import RandomK, Sparse, TopK

DENSE, FIRST, SECOND = range(3)
TAIL = 4
"""Numbers behind each payload: the norms of everything and of both levels, and the flag."""

Measure = Literal["energy", "magnitude"]
"""The norm in which levels are compared: the sum of squares, or of absolute values."""


@dataclass(frozen=True)
class MultiLevel(Rounds):
    """Selects with `codec`, selects further from what that selected, and sends the second level where it holds at
    least `min_share` of gradient and residual by `measure`, the sum of their squares ("energy") or of their absolute
    values ("magnitude"), else the first where that does, else everything
    (multi-level compression: Tyagi and Swany, GraVAC, IEEE CLOUD 2023, https://arxiv.org/abs/2305.12201).

    The second level has `further` times fewer elements, the largest of the first's: for `TopK` exactly those that
    it would have selected alone. `RandomK`'s elements are not nested; both levels are drawn from the whole.

    A step's norms travel behind its payload, 12 bytes, and their sums over the ranks choose the next step's
    level, alike on all ranks: no message, and nothing waits for them. The first step sends everything.
    """

    codec: Codec = field(default=TopK(0.1))
    further: float = 10.0
    min_share: float = 0.02
    measure: Measure = "energy"
    rounds: ClassVar[int] = 1
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.codec, Sparse | RandomK) or not self.codec.biased:
            raise ValueError(
                f"MultiLevel() sends a part of what a sparsifier selects, and {self.codec} is none that goes with a "
                "memory; use e.g. MultiLevel(TopK(0.1), further=10)"
            )
        if not self.further >= 1:
            raise ValueError(f"further={self.further} sends more at the second level; use 1 or more, e.g. further=10")
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share={self.min_share} is no share; it lies in [0, 1], e.g. min_share=0.02")
        if self.measure not in get_args(Measure):
            raise ValueError(f"measure={self.measure!r} is none; use one of {', '.join(get_args(Measure))}")

    @property
    def flat_state(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.codec.flat_state

    @property
    def second(self) -> Codec:
        """The second level's codec."""
        codec: Any = self.codec
        return replace(codec, ratio=codec.ratio / self.further)

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        return self.codec.init_slot(rows, columns, generator) | {"norms": torch.full((3,), torch.nan)}

    def undo(self, x: Tensor, state: State, skip: Tensor) -> None:
        self.codec.undo(x, state, skip)

    def reduce(self, x: Tensor, state: State) -> Reduction:
        n, level = len(x), self.level(state)
        mean = state.kept.tensor("mean", (n + TAIL,))
        self.encode(x, state)
        if level == DENSE:
            mean[:n].copy_(x)
            self._write_tail(mean[n:], state)
            sums = (yield Sum(mean))[n:]
        else:
            codec, message = (self.codec, self.second)[level - 1], self._messages(n, state)[level - 1]
            self._write_tail(message[-4 * TAIL :].view(torch.float32), state)
            if codec.summable:
                rows = (yield Sum(message.view(torch.float32))).view(torch.uint8)[None]
            else:
                receive = state.kept.tensor("receive", (state.world, len(message)), torch.uint8)
                rows = yield Gather(message, receive)
            sums = rows[:, -4 * TAIL :].view(torch.float32).sum(0)
            codec.decode(rows[:, : -4 * TAIL], mean[:n], state)
        state.kept.tensor("sums", (TAIL,)).copy_(sums)
        state.settle(sums[-1:])
        return mean[:n]

    def level(self, state: State) -> int:
        """What this step sends, DENSE, FIRST or SECOND: by the norms of the step before, NaN where there was none."""
        whole, first, second = state.slots[0]["norms"].tolist()
        least = self.min_share * whole
        return SECOND if second >= least else FIRST if first >= least else DENSE

    def encode(self, x: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """The payloads of both levels of x (n,); what they hold is in `observed`."""
        n = len(x)
        first, second = (message[: -4 * TAIL] for message in self._messages(n, state))
        self.codec.encode(x, first, state)
        if self.further == 1:
            second.copy_(first)
        else:
            self.encode_second(x, first, second, state)
        levels = [_values(self.codec, first, n), _values(self.second, second, n)]
        norms, elements = self.observed(state)
        torch.stack([self._norm(values, state) for values in (x, *levels)], out=norms)
        torch.stack([values.count_nonzero() for values in levels], out=elements[1:])
        elements[0] = n
        return first, second

    def observed(self, state: State) -> Tensor:
        """Of this rank and step, (2, 3): the norms of x, first and second level, and their element counts."""
        return state.kept.tensor("observed", (2, 3))

    def sent(self, state: State) -> Tensor:
        """Of this rank and step, (2,): the norm of what is sent, and its elements."""
        return self.observed(state)[:, self.level(state)]

    def _norm(self, values: Tensor, state: State) -> Tensor:
        return torch.dot(values, values) if self.measure == "energy" else magnitude_sum(values, state.scratch)

    def commit(self, x: Tensor, state: State) -> None:
        level = self.level(state)
        self._keep_norms(state)
        if not state.remember:
            return
        if level == DENSE:
            x.mul_(state.verdict.ne(0))
            return
        codec, message = (self.codec, self.second)[level - 1], self._messages(len(x), state)[level - 1]
        codec.commit(message[: -4 * TAIL], x, state)

    def _keep_norms(self, state: State) -> None:
        """Each slot has its group's norms, so that a group of any plan starts from some; on the host, which reads
        them now, when nobody waits, and not while the next step's gradients are computed."""
        norms = torch.cat([state.kept.tensor("sums", (TAIL,))[:3], state.verdict]).cpu()
        if not norms[3].isnan():
            for slot in state.slots:
                slot["norms"] = norms[:3].clone()

    def _write_tail(self, tail: Tensor, state: State) -> None:
        tail[:3].copy_(self.observed(state)[0])
        tail[3:].copy_(state.flag)

    def _messages(self, n: int, state: State) -> tuple[Tensor, ...]:
        """What travels of the first and of the second level, uint8: payload and tail."""
        sizes = [codec.payload_bytes(n) + 4 * TAIL for codec in (self.codec, self.second)]
        return state.kept.tensor("levels", (sum(sizes),), torch.uint8).split(sizes)

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
