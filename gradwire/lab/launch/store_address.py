"""Where ranks meet: the store at MASTER_ADDR and MASTER_PORT, how long a rank looks for it, and what it says then."""

import os
from socket import create_connection, gethostname
from time import monotonic, sleep

import torch.distributed as dist

RETRY_S = 0.1
"""Seconds between two looks for the store."""


def serves_store(rank: int) -> bool:
    """Whether this rank serves the store: rank 0, unless torchrun's agent does so already."""
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def wait_for_store(patience_s: float) -> None:
    """Returns once the store takes connections: rank 0 may begin later, and its name be known later still. Raises
    OSError where it does not within `patience_s`; torch alone would try for three times as long, and hide the reason.
    """
    host, port, until = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), monotonic() + patience_s
    while True:
        try:
            create_connection((host, port), timeout=max(0.1, until - monotonic())).close()
            return
        except OSError:
            if monotonic() > until - RETRY_S:
                raise
        sleep(RETRY_S)


def unmet(error: OSError | RuntimeError) -> OSError:
    """The error, in one line, of a rank that has not met the others: it did not reach the store, or they did not."""
    rank = f"rank {os.environ['RANK']} (host {gethostname()})"
    store = f"the store at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    reason = next(iter(str(error).splitlines()), "").rstrip(".")
    if isinstance(error, dist.DistStoreError):
        return OSError(f"{rank} waited at {store} for ranks that did not come: {reason}; start all ranks")
    return OSError(
        f"{rank} cannot reach {store}: {reason}; give all ranks one MASTER_ADDR, and a MASTER_PORT that is free"
    )
