"""Members: processes that come and go agree, over a store that outlives them, on the next group."""

import json
import logging
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import ClassVar

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from gradwire.transports.torch_store import TorchStore

POLL_S = 0.02
ANEW = "where that job has ended, begin over a store of its own, e.g. PrefixStore('second job', store)"

_logger = logging.getLogger("gradwire")


@dataclass(frozen=True, order=True)
class Claim:
    """A process's claim to the model."""

    generation: int = 0
    """The last generation that it was in; 0 for none."""
    steps: int = -1
    """The number of steps that its model has trained; -1 for the model that it began with."""


@dataclass(frozen=True)
class Generation:
    """The processes of a group."""

    number: int
    claims: tuple[Claim, ...]
    """Each one's claim, by rank; rank 0 has come furthest."""
    rank: int
    """This process's."""


class Members:
    """One process among others. A generation is over when one of its processes asks for the next.

    1. A process that comes adds its claim to the list, under the next free number. All watch how many have come.
    2. When none has come for `last_call_timeout`, a process of the last generation closes the list; the first to do so
       counts. So newcomers alone never begin beside a job that goes on.
    3. Processes on the closed list say that they are still there, for one may have died while it waited. Those that do
       so within `last_call_timeout` are the generation; where they are too few, the list is void, and all go on to the
       next one. One that came too late waits for the generation after, as a newcomer.
    """

    beside_newcomers: ClassVar[bool] = False
    """This process has the model, others of its generation have not, and no training has begun since they met. One for
    the process, as torch.distributed's default group is."""

    def __init__(self, store: Store, at_least: int, last_call_timeout: float, timeout_s: float) -> None:
        self._store, self.at_least = TorchStore("gradwire/members", store), at_least
        self._last_call_timeout, self._timeout_s = last_call_timeout, timeout_s
        self._last = 0

    def meet(self, steps: int) -> Generation:
        """The next generation, once it is complete. Raises TimeoutError where too few come, or none of the last
        generation, and RuntimeError where all processes that had the model are lost, or the store does not answer."""
        mine = Claim(self._last, steps)
        until = monotonic() + self._timeout_s
        number = self._last
        while True:
            # the first list that is open: put this process's claim on it
            number += 1
            while self._store.check([f"{number}/closed"]):
                number += 1
            place = self._store.add(f"{number}/count", 1) - 1
            self._store.set(f"{number}/claim/{place}", json.dumps(asdict(mine)))
            if not self._follows(number):
                _logger.warning("waiting for the job over this store to take this process in; %s", ANEW)
            # wait until no more come; a process that gives up takes its claim back
            try:
                self._wait(number, until)
            except TimeoutError:
                self._store.set(f"{number}/there/{place}", "no")
                raise
            # of those on the list the ones that are still there
            count = int(self._text(f"{number}/closed"))
            if place < count and place in (there := self._there(number, count, place)):
                return self._of(number, there, place)

    def newcomers(self) -> bool:
        """Whether a process waits for the next generation."""
        number = self._last + 1
        if not self._store.check([f"{number}/count"]):
            return False
        # one that has not taken its claim back
        count = self._store.add(f"{number}/count", 0)
        return not self._store.check(_theirs(number, count))

    def begun(self) -> None:
        """Notes that training has begun: the model is no longer the one that every process begins with."""
        Members.beside_newcomers = False
        self._store.set("begun", "yes")

    def _wait(self, number: int, until: float) -> None:
        """Returns when the list is closed, if need be by this process."""
        seen, since = 0, monotonic()
        while not self._store.check([f"{number}/closed"]):
            count = self._store.add(f"{number}/count", 0)
            # another process has come: wait anew
            if count != seen:
                seen, since = count, monotonic()
            # none for a while: a process of the last generation closes the list; of several the first one counts
            elif monotonic() - since > self._last_call_timeout and count >= self.at_least and self._follows(number):
                self._store.first(f"{number}/closed", str(count))
            if monotonic() > until:
                raise TimeoutError(self._why(count))
            sleep(POLL_S)

    def _why(self, count: int) -> str:
        came = f"{count} process{'' if count == 1 else 'es'} came within {self._timeout_s:.0f} s"
        if count < self.at_least:
            return f"{came}, and at least {self.at_least} are wanted"
        return f"{came}, and none of the job over this store, which they are to join; {ANEW}"

    def _follows(self, number: int) -> bool:
        """Whether no generation came between this process's last one and a list: those before it are void."""
        between = [f"{other}/generation" for other in range(self._last + 1, number)]
        return all(self._store.check([key]) and json.loads(self._text(key)) == [] for key in between)

    def _there(self, number: int, count: int, place: int) -> list[int]:
        """The places on a closed list whose processes are still there, the same for all; none if they are too few."""
        keys, generation = _theirs(number, count), f"{number}/generation"
        self._store.set(keys[place], "yes")
        # wait until each has answered, but not for ever: one may have died
        until = monotonic() + self._last_call_timeout
        while not (self._store.check(keys) or self._store.check([generation]) or monotonic() > until):
            sleep(POLL_S)
        # the first rank that finds out which ones are there says so to all
        there = [other for other, key in enumerate(keys) if self._store.get(key, 0) == "yes"]
        enough = there if len(there) >= self.at_least else []
        return json.loads(self._store.first(generation, json.dumps(enough)))

    def _of(self, number: int, there: list[int], place: int) -> Generation:
        """The generation of the processes on a list that are still there."""
        claims = {other: Claim(**json.loads(self._text(f"{number}/claim/{other}"))) for other in there}
        # furthest first; one that never got the model comes behind all that have it, of whatever generation
        order = sorted(there, key=lambda other: (claims[other].steps >= 0, claims[other]), reverse=True)
        # if no process has a trained model, this must be the first generation
        if claims[order[0]].steps < 0 and self._store.check(["begun"]):
            raise RuntimeError("all processes that had the model are lost; begin again, from a checkpoint")
        self._last = number
        Members.beside_newcomers = claims[place].steps >= 0 > claims[order[-1]].steps
        return Generation(number, tuple(claims[other] for other in order), order.index(place))

    def _text(self, key: str) -> str:
        """A text that is in the store."""
        text = self._store.get(key, 0)
        assert text is not None
        return text


def _theirs(number: int, count: int) -> list[str]:
    """The keys under which the processes on a list say whether they are there."""
    return [f"{number}/there/{place}" for place in range(count)]
