"""Ranks meet over the store before they rely on each other: what must be equal on all of them is compared there,
where a rank that differs, or does not come, is an error with a name and not a collective that never ends."""

import json
from collections.abc import Mapping, Sequence
from socket import gethostname
from time import monotonic

from gradwire.runtime.ending import Interrupted
from gradwire.runtime.naming import ranks_named
from gradwire.transports import Mesh

PATIENCE_S = 60.0
"""How long ranks wait for each other at most. They come from DDP's constructor or a step, which are in step already."""
SLICE_S = 1.0
"""How long one question to the store waits: other threads of this rank have questions to it as well."""
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
    3. Every rank reads that. So all hear the same, and all go on or all raise. Where rank 0 itself does not come, each
       of the others finds that out.

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
        """The words of each rank; their "call" is what they meet for. Raises AbsentRanks, naming them, where some do
        not come, and Interrupted where one of them has ended the job."""
        if self._mesh.ranks == 1:
            return [said]
        self._count, self._call = self._count + 1, said.get("call", "the meeting")
        store, rank, key = self._mesh.store, self._mesh.rank, f"meeting/{self._count}"
        store.set(f"{key}/{rank}", json.dumps([gethostname(), dict(said)]))
        if rank == 0:
            store.set(f"{key}/everyone", self._collect(key))
        heard = json.loads(self._answer(key))
        if isinstance(heard, dict):
            raise AbsentRanks(_absent(heard["absent"], self._call, heard["waited"]))
        self.hosts = [host for host, _ in heard]
        return [words for _, words in heard]

    def _collect(self, key: str) -> str:
        """What rank 0 hears of all, or who does not come, as JSON."""
        until = monotonic() + self._patience_s
        texts = [self._word(f"{key}/{rank}", until) for rank in range(self._mesh.ranks)]
        present = [text for text in texts if text is not None]
        if len(present) < len(texts):
            absent = [rank for rank, text in enumerate(texts) if text is None]
            return json.dumps({"absent": absent, "waited": self._patience_s})
        return f"[{','.join(present)}]"

    def _answer(self, key: str) -> str:
        """The answer that rank 0 has left for all; it may wait for the others as long as this rank waits for it."""
        text = self._word(f"{key}/everyone", monotonic() + self._patience_s)
        if text is None and self._mesh.store.get(f"{key}/0", 0) is not None:
            text = self._word(f"{key}/everyone", monotonic() + self._patience_s)
        return text or json.dumps({"absent": [0], "waited": self._patience_s})

    def _word(self, key: str, until: float) -> str | None:
        """A word, once it is there; None where it is not in time."""
        while (text := self._mesh.store.get(key, max(0.01, min(SLICE_S, until - monotonic())))) is None:
            if why := self._mesh.failure():
                raise Interrupted(f"{self._call} ended", why)
            if monotonic() >= until:
                return None
        return text


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


def _absent(ranks: Sequence[int], call: str, waited_s: float) -> str:
    return f"{ranks_named(ranks)} did not come to {call} within {waited_s:.0f} s; make the same calls on all ranks"


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else value[: SHOWN - 3] + "..."
