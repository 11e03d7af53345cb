"""Random faults of a job, drawn from a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

KINDS = ("kill", "stop", "slow", "corrupt", "overflow", "resize")
TIMEOUT_S = 15.0
"""Timeout of the job's collectives; one stop in twenty lasts for longer."""
_LONG_STOP_S = TIMEOUT_S + 3


@dataclass(frozen=True)
class Fault:
    """A fault of a rank.

    kill: kill -9, and another process in its place afterwards. stop: SIGSTOP, then SIGCONT. slow: the links, or where
    there are none the rank. corrupt: a bit of a parameter. overflow: a loss that is not finite. resize: a rank leaves,
    or where one is missing another comes; of two, one leaves and another comes."""

    kind: str
    """One of KINDS."""
    steps: int
    """Of all ranks since the last recovery, before the fault."""
    victim: int
    """The rank, modulo the number of ranks."""
    delay_s: float
    """After the steps."""
    seconds: float
    """How long the fault lasts, if it does."""
    bit: int
    """The one that is flipped."""

    @property
    def outlasts(self) -> bool:
        """Whether the others go on without the victim."""
        return self.seconds > TIMEOUT_S


def faults(seed: int, kinds: Sequence[str]) -> Iterator[Fault]:
    """An endless sequence of faults."""
    chance = Random(seed)
    while True:
        # a stop in twenty outlasts the others' patience
        kind, seconds = chance.choice(kinds), chance.uniform(0.05, 1.0)
        if chance.random() < 0.05 and kind == "stop":
            seconds = _LONG_STOP_S
        yield Fault(
            kind, chance.randint(1, 4), chance.randrange(1 << 16), chance.uniform(0, 0.1), seconds,
            chance.randrange(1 << 32),
        )  # fmt: skip


def read_kinds(text: str) -> list[str]:
    """The kinds that `text` lists. Raises ValueError for an unknown one."""
    kinds = [kind.strip() for kind in text.split(",")]
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"there is no fault {kind!r}: there are {', '.join(KINDS)}")
    return kinds
