"""How a rank joins the others for an examination: by the store alone, before any process group."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic, sleep

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from gradwire.lab.doctor.examination import LIMIT_S
from gradwire.lab.doctor.site import Site
from gradwire.lab.launch.rank_job import ended_at_once
from gradwire.lab.launch.store_address import serves_store, unmet, wait_for_store
from gradwire.lab.names import check_device
from gradwire.launched import gpu_of_rank, started
from gradwire.transports.bounded_calls import run_bounded
from gradwire.transports.torch_store import TorchStore

PATIENCE_S = LIMIT_S + 10
"""How long ranks wait for one that does not come: longer than for one whose check does not end."""
CLOSE_S, LEAVE_S = 5.0, 2.0
"""How long a rank waits, at the end, for its groups to close, and rank 0 for the others to need the store no more."""


def kind_of(device: str | None) -> str:
    """A kind of device, by default a GPU where there is one. Raises ValueError for one that is none."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(kind)
    return kind


def device_here(kind: str) -> torch.device:
    """The device of this rank, set on this thread: the GPU that LOCAL_RANK names, or the only one that it sees."""
    if kind == "cpu":
        return torch.device(kind)
    device = torch.device(kind, gpu_of_rank(torch.cuda.device_count()))
    if device.index < torch.cuda.device_count():
        torch.cuda.set_device(device)
    return device


@contextmanager
def joined(device: torch.device) -> Iterator[Site]:
    """This rank's site. Raises ValueError as `started` does, and OSError where the store cannot be reached within
    PATIENCE_S. What hangs at the end is left behind."""
    # the place that torchrun or Slurm gave this rank
    rank, world = started()
    site = Site(rank, world, device, _store(rank, world), PATIENCE_S)
    try:
        yield site
    finally:
        # groups in the middle of a collective would wait for ranks that hang
        if site.works:
            run_bounded([lambda: _leave_groups(site)], CLOSE_S)
        with suppress(RuntimeError):  # the store is gone
            _leave_store(site)


def _store(rank: int, world: int) -> Store:
    """The store of rank 0, or of torchrun's agent. It does not wait for the others: meetings do, and name them."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    serves, timeout = serves_store(rank), timedelta(seconds=PATIENCE_S)
    try:
        with ended_at_once():
            if not serves:
                wait_for_store(PATIENCE_S)
            store = TCPStore(host, port, world, serves, timeout, wait_for_workers=False, multi_tenant=True)
    except (OSError, RuntimeError) as error:
        raise unmet(error) from error
    return PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _leave_groups(site: Site) -> None:
    if site.groups:
        site.groups.close()
        dist.destroy_process_group()


def _leave_store(site: Site) -> None:
    """Returns on rank 0, with which the store may end, when the others need it no more."""
    store, until = TorchStore("gradwire/doctor/left", site.store), monotonic() + LEAVE_S
    left = store.add("", 1)
    # rank 0 serves the store: it goes last
    while site.rank == 0 and left < site.world and monotonic() < until:
        sleep(0.02)
        left = store.add("", 0)
