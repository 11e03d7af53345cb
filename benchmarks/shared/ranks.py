"""Run a script as the ranks of a job, and return the result of rank 0."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.shared.provenance import CALLED, command


def collect(script: str, arguments: list[str], ranks: int, link: str, hosts: int | None = None) -> Any:
    """Runs `script arguments --out FILE` on every rank and returns rank 0's result. The link is "loopback", or one that
    is emulated between `hosts`, by default one host for each rank."""
    from gradwire.lab.launch.launch import launch
    from gradwire.lab.network.link import Link
    from gradwire.lab.network.network import Network

    called = {CALLED: command()}
    with TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        argv = [script, *arguments, "--out", str(out)]
        if link == "loopback":
            launch(argv, ranks, env=called)
        else:
            with Network(hosts or ranks, Link.parse(link)) as network:
                launch(argv, ranks, env=called, network=network)
        return json.loads(out.read_text())


def sent_bytes() -> int:
    """Bytes that have gone out of this host's interface."""
    from gradwire.lab.network.traffic import interface_traffic

    return interface_traffic(os.environ["GLOO_SOCKET_IFNAME"]).sent_bytes


def as_rank(out: str, job: Callable[[], Any]) -> None:
    """Joins the process group, runs `job`, and writes rank 0's result to `out`. Ends the process."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = job()
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    time.sleep(0.2)  # gloo's threads finish the last collective; otherwise the interpreter may abort at its end
    os._exit(0)
