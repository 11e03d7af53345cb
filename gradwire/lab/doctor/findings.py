"""Findings of checks, and how those of all ranks become one report."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

NAMED = 5
"""So many ranks are named, then the number of the others."""


@dataclass(frozen=True)
class Finding:
    """One result of a check. `ok` is None where something could not be checked; `remedy` is the variable or the call
    that helps, or, where all is well, one that may."""

    name: str
    ok: bool | None
    words: str
    remedy: str = ""
    where: str = ""
    """The ranks that found it, where not all did."""


def at_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Ranks as text, each with its host where that is known."""
    named = [f"rank {rank} (host {hosts[rank]})" if hosts else f"rank {rank}" for rank in ranks[:NAMED]]
    return ", ".join(named) + (f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else "")


def merged(by_rank: Sequence[Sequence[Finding]], hosts: Sequence[str]) -> list[Finding]:
    """The findings of all ranks by name: a good one once, in the first rank's words; a fault with the ranks that found
    it, once for all ranks with the same words."""
    names = dict.fromkeys(finding.name for own in by_rank for finding in own)
    return [each for name in names for each in _of_name(name, by_rank, hosts)]


def _of_name(name: str, by_rank: Sequence[Sequence[Finding]], hosts: Sequence[str]) -> list[Finding]:
    found = [(rank, finding) for rank, own in enumerate(by_rank) for finding in own if finding.name == name]
    # ranks by what is wrong on them
    ranks: dict[Finding, list[int]] = {}
    for rank, finding in found:
        if not finding.ok:
            ranks.setdefault(finding, []).append(rank)
    # nothing is: one finding for all
    if not ranks:
        ranks[found[0][1]] = [rank for rank, _ in found]
    return [
        finding if len(own) == len(by_rank) else replace(finding, where=at_ranks(own, hosts))
        for finding, own in ranks.items()
    ]
