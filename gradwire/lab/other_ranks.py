"""The ranks that are not there where one rank is played, and how they differ from it."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OtherRanks:
    """How the other ranks differ from the one that is played; by default they do as it does.

    Raises ValueError for what cannot be."""

    different: bool = False
    """Whether they send payloads of other batches; else copies of its own."""
    jitter: float = 0.0
    """The standard deviation of a rank's computing from step to step, as a share of it."""
    slow_rank: float = 1.0
    """How many times as long one of them computes."""

    def __post_init__(self) -> None:
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter {self.jitter} is no share of a step's computing: give 0 to 1, such as 0.05")
        if not 1 <= self.slow_rank <= 1000:
            raise ValueError(f"a slow rank computes 1 to 1000 times as long, such as 1.2, not {self.slow_rank}")

    @property
    def late(self) -> bool:
        """Whether this rank ever waits for a slower one."""
        return self.jitter > 0 or self.slow_rank > 1

    def behind(self, ranks: int, seed: int, step: int, every: int = 1) -> float:
        """How far the slowest of so many ranks is behind the played one when they meet after step `step`, in steps of
        the played one's computing; 0 where none is. They met before `every` steps. The same seed and step give the
        same number."""
        took = np.random.default_rng((seed, step)).normal(1.0, self.jitter, (every, ranks - 1)).sum(0)
        took[0] *= self.slow_rank
        return max(0.0, float(took.max()) - every)

    def __str__(self) -> str:
        """In words, for headings; nothing where they do as the played one does."""
        words = {
            "payloads of other batches": self.different,
            f"a jitter of {100 * self.jitter:g} %": self.jitter > 0,
            f"one rank {self.slow_rank:g} times as slow": self.slow_rank > 1,
        }
        return "".join(f", {each}" for each, said in words.items() if said)
