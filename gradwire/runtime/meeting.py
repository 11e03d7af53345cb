"""Meetings of ranks over the store before they rely on each other: all that must be equal on them is compared there,
where a rank that differs, or does not come, is an error with a name and not a collective that never ends."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from socket import gethostname
from time import monotonic
from typing import Any

from gradwire.runtime.failures.job_errors import AbsentRanks, PeerFailed
from gradwire.transports import Mesh
from gradwire.transports.gathering import PATIENCE_S, poll, ranks_named
from gradwire.transports.mesh import GIVEN_UP

SHOWN = 60
"""The characters of a value that an error shows."""


_log = logging.getLogger("gradwire")
Facts = Mapping[str, str]
"""What must be equal on all ranks, by the name that errors call it."""


class Disagreement(ValueError):
    """Ranks differ in `field`; all of them raise this."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field

    def __reduce__(self) -> tuple[Any, ...]:
        return Disagreement, (str(self), self.field)


class Meeting:
    """The meetings of one job, one after another, the same ones on all ranks:

    1. Every rank leaves its facts in the store, under the meeting's number.
    2. Rank 0 reads them, and leaves all of them, equal ones once, or the ranks that did not come in time.
    3. Every rank reads that. So all read the same, and all go on or all raise. Where rank 0 itself does not come, each
       of the others finds that out.
    4. Texts that all have read are deleted. Every other rank deletes its facts at once, for rank 0 has read them; rank
       0 deletes its own and its answer at the next meeting.
    """

    hosts: list[str]
    """The ranks' hosts, from the first meeting on."""
    training: str
    """A random name of this training: rank 0's, from the first meeting on. It does not follow from the seed."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._count = 0
        self._patience_s = min(PATIENCE_S, mesh.timeout_s / 2)
        self.hosts = []
        self.training = token_hex(8)

    def compare(self, facts: Facts, *, patience_s: float | None = None) -> None:
        """Raises Disagreement on all ranks, naming the field and the ranks, where their facts differ, and AbsentRanks
        where some do not come. The field "error" has the reason why a rank cannot go on."""
        if found := disagreement(self.gather(facts, patience_s)):
            raise Disagreement(*found)

    def gather(self, facts: Facts, patience_s: float | None = None) -> list[Facts]:
        """The facts of each rank; "call" is the call for which they meet. Raises AbsentRanks, naming them, where some
        do not come, in PATIENCE_S or the given time, and PeerFailed where one of them has ended the job."""
        if self._mesh.ranks == 1:
            return [facts]
        # leave this rank's facts
        self._count, self._call = self._count + 1, facts.get("call", "the meeting")
        store = self._mesh.store
        rank = self._mesh.rank
        key = f"meeting/{self._count}"
        patience_s = self._patience_s if patience_s is None else patience_s
        store.set(f"{key}/{rank}", json.dumps([gethostname(), dict(facts)]))
        # rank 0 collects them, and answers all
        if rank == 0:
            store.set(f"{key}/everyone", self._collect(key, patience_s))
        # every rank reads the same answer
        answer = json.loads(self._answer(key, patience_s))
        if "absent" in answer:
            # a rank that comes late finds this, and meets the others in their next job
            store.set(GIVEN_UP, "")
            absent, waited_s = answer["absent"], answer["waited"]
            why = (
                f"{ranks_named(absent)} did not come to {self._call} within {waited_s:.0f} s; make the same calls on "
                "all ranks; where some come later, call dist.barrier() first"
            )
            raise AbsentRanks(self._call, why, absent)
        self._delete_read()
        self.training = answer.get("training", "")  # rank 0 may have an earlier version, which facts tell
        self.hosts = [answer["hosts"][host] for host, _ in answer["ranks"]]
        return [answer["facts"][facts] for _, facts in answer["ranks"]]

    def _delete_read(self) -> None:
        """Deletes this rank's texts that no rank needs any more, now that all have come."""
        store, rank = self._mesh.store, self._mesh.rank
        with suppress(RuntimeError):  # the store cannot delete, or is gone, which the next call finds
            if rank:
                store.delete(f"meeting/{self._count}/{rank}")
            elif self._count > 1:
                # others look for these two until they have read the answer, and so before they come to this meeting
                for text in "0", "everyone":
                    store.delete(f"meeting/{self._count - 1}/{text}")

    def _collect(self, key: str, patience_s: float) -> str:
        """All ranks' facts, or the ranks that do not come, as JSON; on rank 0."""
        # wait for all ranks, one after another, until the time is over
        until = monotonic() + patience_s
        usual = min(until, monotonic() + self._patience_s)
        texts = [self._read(f"{key}/{rank}", usual) for rank in range(self._mesh.ranks)]
        # longer where ranks may be apart by a round of local steps, or by compiling kernels
        if until > usual and (late := [rank for rank, text in enumerate(texts) if text is None]):
            _log.warning(
                "%s did not come to %s within %.0f s; the others wait for %.0f s",
                ranks_named(late), self._call, self._patience_s, patience_s,
            )  # fmt: skip
            for rank in late:
                texts[rank] = self._read(f"{key}/{rank}", until)
        present = [text for text in texts if text is not None]
        if len(present) < len(texts):
            absent = [rank for rank, text in enumerate(texts) if text is None]
            return json.dumps({"absent": absent, "waited": patience_s})
        return json.dumps(_each_once(present) | {"training": self.training})

    def _answer(self, key: str, patience_s: float) -> str:
        """Rank 0's answer. Rank 0 may wait for the others as long as this rank waits for rank 0."""
        text = self._read(f"{key}/everyone", monotonic() + patience_s)
        # rank 0 has come, but waits for another rank: give it its whole time
        if text is None and self._mesh.store.get(f"{key}/0", 0) is not None:
            text = self._read(f"{key}/everyone", monotonic() + patience_s)
        return text or json.dumps({"absent": [0], "waited": patience_s})

    def _read(self, key: str, until: float) -> str | None:
        """A text of the store, once it is there; None where it is not in time."""
        # ask again and again: other threads of this rank use the store, too, and the job may end meanwhile
        for text in poll(self._mesh.store, key, until):
            if text is not None:
                return text
            if why := self._mesh.failure():
                raise PeerFailed(f"{self._call} ended", why)
        return None


def _each_once(texts: Sequence[str]) -> dict[str, object]:
    """All ranks' hosts and facts for JSON, each one that several ranks have once: all ranks read it."""
    hosts, facts = dict[str, int](), dict[str, int]()
    # by rank: the numbers of its host and of its facts
    ranks = [
        (hosts.setdefault(host, len(hosts)), facts.setdefault(json.dumps(own), len(facts)))
        for host, own in map(json.loads, texts)
    ]
    return {"hosts": list(hosts), "facts": [json.loads(own) for own in facts], "ranks": ranks}


def disagreement(facts: Sequence[Facts]) -> tuple[str, str] | None:
    """A message about the first field in which the ranks' facts differ, and the field; None where all are equal."""
    # a rank that cannot go on is named first
    if failed := {rank: own["error"] for rank, own in enumerate(facts) if "error" in own}:
        rank, error = next(iter(failed.items()))
        return (error if len(failed) == len(facts) else f"rank {rank} cannot go on: {error}"), "error"
    # then fields in the order in which ranks give them
    for field in dict.fromkeys(field for own in facts for field in own):
        # which ranks have which value
        values: dict[str, list[int]] = {}
        for rank, own in enumerate(facts):
            values.setdefault(own.get(field, "none"), []).append(rank)
        if len(values) > 1:
            parts = [f"{_short(value)} on {ranks_named(ranks)}" for value, ranks in values.items()]
            return f"the ranks differ in {field}: {', '.join(parts)}; give every rank the same", field
    return None


def _short(value: str) -> str:
    return value if len(value) <= SHOWN else value[: SHOWN - 3] + "..."
