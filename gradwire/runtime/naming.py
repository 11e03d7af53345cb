"""Ranks in words."""

from collections.abc import Sequence


def ranks_named(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    names = ", ".join(map(str, ranks[:5])) + (", ..." if len(ranks) > 5 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def rank_at(rank: int, host: str) -> str:
    """A rank in words, with its host where that is known."""
    return f"rank {rank} (host {host})" if host else f"rank {rank}"
