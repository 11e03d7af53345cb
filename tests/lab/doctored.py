"""`gradwire doctor` on a rank on which something is wrong: `python -m tests.lab.doctored FAULT ...`."""

import os
import sys
from threading import Event
from time import monotonic

import torch

from gradwire.cli import main
from gradwire.collective import Collective, Sum
from gradwire.lab.doctor import examination, joining, rank_groups
from gradwire.lab.doctor.facts import GPU, GPUS, facts_here
from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import Groups, Site
from gradwire.transports import Done, Pending, Transport


def second() -> bool:
    """Whether this is rank 1."""
    return os.environ["RANK"] == "1"


class WrongSums(Transport):
    """A transport that adds 1 to this rank's sums."""

    def __init__(self, inner: Transport) -> None:
        self.rank, self.world, self.store, self.timeout_s = inner.rank, inner.world, inner.store, inner.timeout_s
        self._inner = inner

    def start(self, op: Collective) -> Pending:
        pending = self._inner.start(op)
        if not isinstance(op, Sum):
            return pending
        pending.wait()
        op.message.whole.add_(1)
        return Done()


def with_facts(**changed: str) -> None:
    """This rank has other facts."""
    examination.facts_here = lambda device: facts_here(device) | changed


def other_torch() -> None:
    if second():
        with_facts(torch="2.11.0", host="b")


def harmful_variable() -> None:
    if second():
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"


def shared_gpu() -> None:
    with_facts(**{GPU: "H100 GPU-3f", GPUS: "2", "current GPU": "0"})


def wrong_sums() -> None:
    opened = rank_groups.open_groups

    def wrapped(site: Site) -> Groups:
        groups = opened(site)
        return Groups(groups.backend, WrongSums(groups.everyone))

    if second():
        rank_groups.open_groups = wrapped


def no_library() -> None:
    if second():
        os.environ["GRADWIRE_KERNELS"] = __file__


def lost(rank: int = 1) -> None:
    """A rank ends in a check; the other waits for it for 8 s."""

    def check(site: Site) -> list[Finding]:
        os._exit(0)

    joining.PATIENCE_S = 8.0
    if os.environ["RANK"] == str(rank):
        examination.CHECKS["environment"] = examination.Check(check)


def first_lost() -> None:
    lost(0)


def stuck() -> None:
    """The rank begins no collective; each check may take 8 s."""

    def check(site: Site) -> list[Finding]:
        Event().wait()
        return []

    examination.LIMIT_S = 8.0
    if second():
        examination.CHECKS["collectives"] = examination.Check(check, carried=True)


def late() -> None:
    """The clock of a rank runs a million times too fast, so that its first check takes all the time that there is."""
    if second():
        examination.monotonic = lambda: 1e6 * monotonic()


def raises() -> None:
    """The rank's collectives fail with an error of its own."""

    def check(site: Site) -> list[Finding]:
        raise OSError("the card has melted")

    if second():
        examination.CHECKS["collectives"] = examination.Check(check, carried=True)


FAULTS = (other_torch, harmful_variable, shared_gpu, wrong_sums, no_library, lost, first_lost, late, stuck, raises)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for fault in FAULTS:
        if fault.__name__ in sys.argv[1:]:
            fault()
    sys.exit(main(["doctor", "--device", "cpu"]))
