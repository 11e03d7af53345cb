"""Run a script as the ranks of a job, and return the result of rank 0."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.shared.provenance import CALLED, command

FOUND = "GRADWIRE_BENCHMARK_FOUND"
"""The environment variable of ranks with the file that rank 0 writes its result to."""


def collect(script: str, arguments: list[str], ranks: int, link: str, hosts: int | None = None) -> Any:
    """Runs `script arguments` on every rank, where `as_rank` runs a job, and returns rank 0's result. The link is
    "loopback", or one that is emulated between `hosts`, by default one host for each rank."""
    from gradwire.lab.launch.launch import launch
    from gradwire.lab.network.link import Link
    from gradwire.lab.network.network import Network

    with TemporaryDirectory() as folder:
        argv, env = [script, *arguments], {CALLED: command(), FOUND: f"{folder}/found.json"}
        if link == "loopback":
            launch(argv, ranks, env=env)
        else:
            with Network(hosts or ranks, Link.parse(link)) as network:
                launch(argv, ranks, env=env, network=network)
        return json.loads(Path(env[FOUND]).read_text())


def sent_bytes() -> int:
    """Bytes that have gone out of this host's interface."""
    from gradwire.lab.network.traffic import interface_traffic

    return interface_traffic(os.environ["GLOO_SOCKET_IFNAME"]).sent_bytes


def as_rank(job: Callable[[], Any]) -> None:
    """On a rank that `collect` started: joins the process group, runs `job`, writes rank 0's result and ends the
    process. Elsewhere it does nothing."""
    if FOUND not in os.environ:
        return
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = job()
    if dist.get_rank() == 0:
        Path(os.environ[FOUND]).write_text(json.dumps(found))
    dist.barrier()
    time.sleep(0.2)  # gloo's threads finish the last collective; otherwise the interpreter may abort at its end
    os._exit(0)
