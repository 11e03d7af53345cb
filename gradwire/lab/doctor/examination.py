"""An examination: all checks in order, on all ranks, which meet over the store after each."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import NamedTuple, Protocol

import torch

from gradwire.lab.doctor import (
    collectives,
    environment,
    kernels,
    rank_groups,
    store_speed,
    training_step,
    versions,
    wires,
)
from gradwire.lab.doctor.facts import facts_here
from gradwire.lab.doctor.findings import Finding, at_ranks, merged
from gradwire.lab.doctor.site import Site
from gradwire.runtime.failures.job_errors import AbsentRanks

LIMIT_S = 30.0
"""How long one check may take."""
LAST_BEGIN_S = 90.0
"""No check begins later than this on any rank, so that two minutes are enough for all."""
LOST = "look at that rank's own output and its host; a firewall, an address or a port may keep it away"
STUCK = "NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME: hosts may have no network in common"


class Check(NamedTuple):
    """One check; `carried` if it needs groups that work."""

    run: Callable[[Site], list[Finding]]
    carried: bool = False


CHECKS = {
    "versions": Check(versions.check),
    "environment": Check(environment.check),
    "store": Check(store_speed.check),
    "process groups": Check(rank_groups.check),
    "collectives": Check(collectives.check, carried=True),
    "latency and bandwidth": Check(wires.check, carried=True),
    "kernels": Check(kernels.check),
    "training": Check(training_step.check, carried=True),
}


class Listener(Protocol):
    """Where an examination's progress goes on this rank."""

    def begins(self, check: str) -> None:
        """A check begins."""
        ...

    def met(self, site: Site) -> None:
        """All ranks have come."""
        ...

    def found(self, check: str, findings: Sequence[Finding]) -> None:
        """A check has ended, with the findings of all ranks."""
        ...

    def ended(self, check: str, finding: Finding, first_is_lost: bool) -> None:
        """The examination has ended early in a check; where rank 0 is lost, every other rank has to say so."""
        ...


def examine(site: Site, listener: Listener) -> None:
    """Runs all checks on this rank; on each, at the same time. Ends early where a rank does not come, which is a
    finding on all others. `site.works` is false where something still hangs: then end the process at once."""
    meeting = site.meeting("main")
    name = "ranks"
    began = monotonic()
    spent = 0.0
    try:
        # the ranks meet, and learn each other's facts
        site.everyone = [dict(facts) for facts in meeting.gather({"call": name} | facts_here(site.device))]
        listener.met(site)
        for name, check in CHECKS.items():
            # each rank runs the check by itself
            listener.begins(name)
            own, works = _result(name, check, site) if spent < LAST_BEGIN_S else ([_late(spent)], site.works)
            facts = {"call": name, "works": str(works), "findings": json.dumps([asdict(each) for each in own])}
            facts["spent"] = str(monotonic() - began)
            # they meet, and share their findings
            everyone = meeting.gather(facts)
            site.works = all(own["works"] == "True" for own in everyone)
            spent = max(float(own["spent"]) for own in everyone)
            found = [[Finding(**each) for each in json.loads(own["findings"])] for own in everyone]
            listener.found(name, merged(found, site.hosts))
    except AbsentRanks as error:
        site.works = False
        listener.ended(name, _absent(error, site), first_is_lost=0 in error.ranks)
    except RuntimeError as error:
        # the store is gone, and rank 0 with it
        site.works = False
        listener.ended(name, Finding("meeting", False, str(error), LOST), first_is_lost=True)


def _late(spent: float) -> Finding:
    return Finding(
        "not checked", False, f"the checks before it took {spent:.0f} s", "try again while the hosts are idle"
    )


def _absent(error: AbsentRanks, site: Site) -> Finding:
    hosts = site.hosts if site.everyone else []
    words = f"{at_ranks(error.ranks, hosts)} did not come to the end of this check within {site.patience_s:.0f} s"
    return Finding("meeting", False, words, LOST)


def _result(name: str, check: Check, site: Site) -> tuple[list[Finding], bool]:
    """This rank's findings, and whether the groups still work: checks after a wrong result would not agree."""
    if check.carried and not (site.works and site.groups):
        return [Finding("not checked", None, "the process groups do not work")], site.works
    # on a thread of its own: a check that hangs is left behind
    answer, site.doing = Future[list[Finding]](), ""
    thread = threading.Thread(target=_answer, args=(answer, partial(check.run, site), site.device), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    if not answer.done():
        return [Finding(name, False, f"did not end within {LIMIT_S:.0f} s, {site.doing}", STUCK)], False
    try:
        found = answer.result()
    except BaseException as error:
        # a ValueError's message says itself what helps
        remedy = "" if isinstance(error, ValueError) else STUCK
        return [_failed(name, error, remedy, check.carried, site)], False
    right = all(finding.ok is not False for finding in found)
    return found, site.works and (right or not check.carried)


def _answer(answer: Future[list[Finding]], call: Callable[[], list[Finding]], device: torch.device) -> None:
    """Calls on this thread, for which the device has to be set anew."""
    try:
        if device.type == "cuda" and device.index < torch.cuda.device_count():
            torch.cuda.set_device(device)
        answer.set_result(call())
    except BaseException as error:
        answer.set_exception(error)


def _failed(name: str, error: BaseException, remedy: str, carried: bool, site: Site) -> Finding:
    """A check's error. The other ranks' collectives end with it, and they say that this rank was the reason."""
    # this rank's own words, unless another rank aborted the groups first
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    words = f"{line} ({site.doing})" if site.doing else line
    if site.groups and carried:
        words = site.groups.failure() or words
        site.groups.abort(f"{at_ranks([site.rank], site.hosts)}: {words}")
    return Finding(name, False, words, remedy)
