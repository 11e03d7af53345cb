"""Which faults befall a job: drawn from a seed, so that a run can be had again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

KINDS = ("kill", "stop", "slow", "corrupt", "overflow", "resize")
TIMEOUT_S = 15.0
"""Of the job's collectives; one stop in twenty lasts for longer."""
_LONG_STOP_S = TIMEOUT_S + 3


@dataclass(frozen=True)
class Fault:
    """What happens when all ranks have made `steps` steps since they were last well, and `delay_s` later. `victim`,
    modulo the number of ranks, is whom it befalls, for `seconds` where it lasts; `word` says which bit is flipped.

    kill: kill -9, and another process in its place afterwards. stop: SIGSTOP, then SIGCONT. slow: the links, or where
    there are none the rank. corrupt: a bit of a parameter. overflow: a loss that is not finite. resize: a rank leaves,
    or where one is missing another comes; of two, one leaves and another comes."""

    kind: str
    steps: int
    victim: int
    delay_s: float
    seconds: float
    word: int

    @property
    def outlasts(self) -> bool:
        """Whether the others go on without the victim."""
        return self.seconds > TIMEOUT_S


def faults(seed: int, kinds: Sequence[str]) -> Iterator[Fault]:
    """As many as are wanted."""
    chance = Random(seed)
    while True:
        kind, seconds = chance.choice(kinds), chance.uniform(0.05, 1.0)
        if chance.random() < 0.05 and kind == "stop":
            seconds = _LONG_STOP_S
        yield Fault(
            kind, chance.randint(1, 4), chance.randrange(1 << 16), chance.uniform(0, 0.1), seconds,
            chance.randrange(1 << 32),
        )  # fmt: skip


def read_kinds(text: str) -> list[str]:
    """What `text` lists. Raises ValueError for a fault that there is not."""
    kinds = [kind.strip() for kind in text.split(",")]
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"there is no fault {kind!r}: there are {', '.join(KINDS)}")
    return kinds
