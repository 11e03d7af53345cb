"""The store: how fast it answers one rank, and all of them at once."""

from statistics import median
from time import perf_counter

from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import Site
from gradwire.transports.torch_store import TorchStore

QUESTIONS, ALL_ASK_S = 50, 0.5
SLOW_MS = 50.0
"""An answer that takes longer holds up `attach()` and the watch for lost ranks."""
LOOKS = 2
"""Questions that a rank asks each second to notice lost ranks: one on each axis."""
REMEDY = "have MASTER_ADDR name a host with an idle core, on the network that joins all hosts"


def check(site: Site) -> list[Finding]:
    """The time of one question, and the questions a second that all ranks ask together."""
    store = TorchStore(f"gradwire/doctor/asked/{site.rank}", site.store)
    # each rank by itself, without waiting for the others
    times = [_asked_s(store) for _ in range(QUESTIONS)]
    # all at once
    site.doing = "waiting for the other ranks"
    meeting = site.meeting("store")
    meeting.gather({"call": "the store's check"})
    # for a while each rank asks as fast as it can
    count, began = 0, perf_counter()
    while (spent := perf_counter() - began) < ALL_ASK_S:
        _asked_s(store)
        count += 1
    rates = meeting.gather({"call": "the store's check", "rate": str(count / spent)})
    return [_latency(1e3 * median(times)), _rate(sum(float(own["rate"]) for own in rates), site.world)]


def _asked_s(store: TorchStore) -> float:
    began = perf_counter()
    store.add("", 1)
    return perf_counter() - began


def _latency(milliseconds: float) -> Finding:
    fast = milliseconds <= SLOW_MS
    return Finding("one question", fast, f"{milliseconds:.2f} ms", "" if fast else REMEDY)


def _rate(rate: float, world: int) -> Finding:
    wanted = LOOKS * world
    enough = rate >= wanted
    words = f"{rate:,.0f} a second from all ranks; the watch for lost ranks asks {wanted:,} a second at most"
    return Finding("questions", enough, words, "" if enough else REMEDY)
