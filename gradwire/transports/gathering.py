"""The gathering of ranks over the store before they make a process group: torch's own calls would wait for half an hour
for a rank that does not come."""

from collections.abc import Sequence
from time import monotonic

from gradwire.transports.transport import KeyValueStore

PATIENCE_S = 60.0
"""How long ranks wait for each other at most."""
SLICE_S = 1.0
"""How long one question to the store waits, while other threads of this rank wait for the store."""


def ranks_named(ranks: Sequence[int]) -> str:
    """A list of ranks as text."""
    names = ", ".join(map(str, ranks[:5])) + (", ..." if len(ranks) > 5 else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def gather(store: KeyValueStore, rank: int, ranks: Sequence[int], timeout_s: float) -> None:
    """Returns once all `ranks` have called this. Raises RuntimeError, naming those that have not in time."""
    # each leaves a mark; the last one to come says that all are there
    store.set(f"here/{rank}", "")
    if store.add("here", 1) == len(ranks):
        store.set("all here", "")
    patience_s = min(PATIENCE_S, timeout_s / 2)
    until = monotonic() + patience_s
    while store.get("all here", max(0.01, min(SLICE_S, until - monotonic()))) is None:
        # one may have come in this very moment
        late = monotonic() >= until
        if late and (absent := [other for other in ranks if store.get(f"here/{other}", 0) is None]):
            raise RuntimeError(
                f"{ranks_named(absent)} did not come to make a process group within {patience_s:.0f} s; make the same "
                "calls, such as gw.attach(), on all ranks"
            )
