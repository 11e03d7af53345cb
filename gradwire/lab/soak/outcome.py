"""What a long run under faults has come to: each fault with its recovery, and the laws that were broken."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Followed:
    """A fault and the recovery from it."""

    kind: str
    """One of KINDS."""
    front_end: str
    episode: int
    """Its number; each has a front end and a plan."""
    victim: str
    """The rank's name."""
    at_s: float
    """Of the fault, since the run began."""
    seconds: float | None
    """From its end until all ranks had gone on, None where they did not."""
    what: str
    """Reports meanwhile."""


@dataclass
class Soaked:
    """Results of a run so far; `broken` lists violated laws."""

    seed: int
    """Of the faults."""
    place: str
    """The ranks and their links."""
    seconds: float = 0.0
    """Since all processes had loaded."""
    steps: int = 0
    """Of all ranks."""
    faults: list[Followed] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
