"""The gathering of ranks over the store before they make a process group: torch's own calls would wait for half an hour
for a rank that does not come."""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from time import monotonic, sleep
from typing import Any

from gradwire.transports.torch_store import TorchStore
from gradwire.transports.transport import KeyValueStore

PATIENCE_S = 60.0
"""How long ranks wait for each other at most. They come from DDP's constructor or a step, so they come together."""
SLICE_S = 1.0
"""How long the first question to the store waits, while other threads of this rank wait for the store."""
PAUSE_S = 0.1
"""The time until the second; it doubles up to that of a slice, so that thousands of ranks do not flood the store."""


def ranks_named(ranks: Sequence[int]) -> str:
    """A list of ranks as text."""
    names = ", ".join(map(str, ranks[:5])) + (", ..." if len(ranks) > 5 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def poll(store: KeyValueStore, key: str, until: float) -> Iterator[str | None]:
    """Asks for a text of the store again and again, until a time of `monotonic`; yields None while it is not there."""
    yield store.get(key, max(0.0, min(SLICE_S, until - monotonic())))
    # from now on without waiting: torch's store warns of each wait in vain
    pause_s = PAUSE_S
    while (left_s := until - monotonic()) > 0:
        sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, SLICE_S)
        yield store.get(key, 0)


def meet(rank: int, ranks: list[int], timeout_s: float) -> str:
    """The name of a new group, once all its `ranks` have called this. Raises RuntimeError, naming those that have not
    in time."""
    # where the others have given up before this rank came, it meets them at their next call
    of_these = f"gradwire/{sha256(str(ranks).encode()).hexdigest()[:16]}"
    while not gather(TorchStore(name := numbered(of_these, rank)), rank, ranks, timeout_s):
        pass
    return name


def numbered(name: str, rank: int, store: Any = None) -> str:
    """A new name that begins with `name`, the same on all ranks, which make such names together. Every rank counts in
    the store how many it has made; so a rank that is new beside others has as many as they have."""
    return f"{name}/{TorchStore(name, store).add(f'made/{rank}', 1)}"


def gather(store: TorchStore, rank: int, ranks: Sequence[int], timeout_s: float) -> bool:
    """Returns True once all `ranks` have called this, and False where they have given this one up before it came.
    Raises RuntimeError, naming those that did not come in time. All ranks go by one answer, the first in the store."""
    # each leaves a mark; the last one to come says that none is absent
    store.set(f"here/{rank}", "")
    if store.add("here", 1) == len(ranks):
        store.first("absent", json.dumps([]))
    patience_s = min(PATIENCE_S, timeout_s / 2)
    answer = next(filter(None, poll(store, "absent", monotonic() + patience_s)), None)
    # this rank gives up, if no other has and the last one has not come in this very moment
    if answer is None:
        absent = [other for other in ranks if not store.check([f"here/{other}"])]
        answer = store.first("absent", json.dumps(absent))
    absent = json.loads(answer)
    if absent and rank not in absent:
        raise RuntimeError(
            f"{ranks_named(absent)} did not come to make a process group within {patience_s:.0f} s; make the same "
            "calls, such as gw.attach(), on all ranks; where some come later, call dist.barrier() first"
        )
    return not absent
