"""Ranks meet over the store before they rely on each other: what must be equal on all of them is compared there,
where a rank that differs, or does not come, is an error with a name and not a collective that never ends."""

import json
from collections.abc import Mapping, Sequence
from socket import gethostname
from time import monotonic

from gradwire.transports import Mesh

PATIENCE_S = 60.0
"""How long ranks wait for each other at most. They come from DDP's constructor or a step, which are in step already."""
SHOWN = 60


class Disagreement(ValueError):
    """Ranks differ in `field`; all of them raise this."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class AbsentRanks(RuntimeError):
    """Ranks did not come to a meeting; all others raise this, as for any rank that is lost."""


class Meeting:
    """The meetings of one job, one after another, the same ones on all ranks:

    1. Every rank leaves its words in the store, under the meeting's number.
    2. Rank 0 reads them, and leaves all of them, or who did not come in time.
    3. Every rank reads that. So all hear the same, and all go on or all raise.

    `hosts` are the ranks' hosts, from the first meeting on.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh, self._count, self._patience_s = mesh, 0, min(PATIENCE_S, mesh.timeout_s / 2)
        self.hosts: list[str] = []

    def compare(self, said: Mapping[str, str]) -> None:
        """Raises Disagreement on all ranks, naming the field and the ranks, where what they say differs, and
        AbsentRanks where some do not come.

        A field "error" says why a rank cannot go on."""
        if found := disagreement(self.gather(said)):
            raise Disagreement(*found)

    def gather(self, said: Mapping[str, str]) -> list[Mapping[str, str]]:
        """What each rank says. Raises AbsentRanks, naming them, where some do not come."""
        if self._mesh.ranks == 1:
            return [said]
        self._count += 1
        store, rank, key = self._mesh.store, self._mesh.rank, f"meeting/{self._count}"
        store.set(f"{key}/{rank}", json.dumps([gethostname(), dict(said)]))
        if rank == 0:
            store.set(f"{key}/everyone", self._collect(key))
        text = store.get(f"{key}/everyone", 2 * self._patience_s)
        heard = {"absent": [0], "waited": 2 * self._patience_s} if text is None else json.loads(text)
        if isinstance(heard, dict):
            raise AbsentRanks(_absent(heard["absent"], heard["waited"]))
        self.hosts = [host for host, _ in heard]
        return [words for _, words in heard]

    def _collect(self, key: str) -> str:
        """What rank 0 hears of all, or who does not come, as JSON."""
        until = monotonic() + self._patience_s
        told = [
            self._mesh.store.get(f"{key}/{rank}", max(0.01, until - monotonic())) for rank in range(self._mesh.ranks)
        ]
        missing = [rank for rank, text in enumerate(told) if text is None]
        if missing:
            return json.dumps({"absent": missing, "waited": self._patience_s})
        return f"[{','.join(text for text in told if text is not None)}]"


def disagreement(said: Sequence[Mapping[str, str]]) -> tuple[str, str] | None:
    """In words what differs between what ranks said, by rank, and the field; None where all is equal."""
    if failed := {rank: words["error"] for rank, words in enumerate(said) if "error" in words}:
        rank, error = next(iter(failed.items()))
        return (error if len(failed) == len(said) else f"rank {rank} cannot go on: {error}"), "error"
    for field in dict.fromkeys(field for words in said for field in words):
        values: dict[str, list[int]] = {}
        for rank, words in enumerate(said):
            values.setdefault(words.get(field, "none"), []).append(rank)
        if len(values) > 1:
            parts = [f"{_short(value)} on {ranks_named(ranks)}" for value, ranks in values.items()]
            return f"the ranks differ in {field}: {', '.join(parts)}; give every rank the same", field
    return None


def _absent(ranks: Sequence[int], waited_s: float) -> str:
    return f"{ranks_named(ranks)} did not come within {waited_s:.0f} s; make the same calls on all ranks"


def ranks_named(ranks: Sequence[int]) -> str:
    """Ranks in words."""
    names = ", ".join(map(str, ranks[:5])) + (", ..." if len(ranks) > 5 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def rank_at(rank: int, host: str) -> str:
    """A rank in words, with its host where that is known."""
    return f"rank {rank} (host {host})" if host else f"rank {rank}"


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else value[: SHOWN - 3] + "..."
