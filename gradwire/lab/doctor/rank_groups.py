"""Process groups: hosts, GPUs, and the transports of all ranks, inside hosts and between hosts."""

from collections import Counter
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

from gradwire.lab.doctor.facts import CURRENT, DEVICE, GPU, GPUS, HOST, LOCAL_RANK, NONE, Facts, hosts_of, ranks_by
from gradwire.lab.doctor.findings import Finding, at_ranks
from gradwire.lab.doctor.site import Groups, Site
from gradwire.transports import ProcessGroup

SHOWN = 8
"""So many hosts are named."""
TIMEOUT_S = 120.0
"""Of the groups: a check that does not end is noticed before, by time."""
SET_DEVICE = (
    'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) first; start at most as many ranks on a host as it has'
    " GPUs (--nproc-per-node, CUDA_VISIBLE_DEVICES)"
)


def check(site: Site) -> list[Finding]:
    """Opens the groups, unless the ranks cannot be in one. Says how the ranks are placed."""
    found = [_hosts(site), *_gpus(site)]
    if why := _why_none(site):
        return [*found, Finding("groups", None, f"not made: {why}")]
    # all ranks meet in here; `doing` is what a rank says that waits too long
    site.doing = "making the process groups"
    site.groups = open_groups(site)
    return [*found, Finding("groups", True, f"{site.groups.backend}: {', '.join(site.groups.axes)}")]


def _why_none(site: Site) -> str:
    """The reason why the ranks cannot be in one group; "" where they can."""
    if len(ranks_by(site.everyone, DEVICE)) > 1:
        return "gloo and NCCL do not meet"
    gpus = [facts[GPU] for facts in site.everyone if GPU in facts]
    return "NCCL wants one GPU for each rank" if NONE in gpus or (gpus and _sharing(site.everyone)) else ""


def open_groups(site: Site) -> Groups:
    """The groups of all ranks and, where that is more, of the axes of hosts."""
    backend = "nccl" if site.device.type == "cuda" else "gloo"
    store = PrefixStore("gradwire/doctor/groups", site.store)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(backend, store=store, rank=site.rank, world_size=site.world, timeout=timeout)
    everyone, size = ProcessGroup.own(), _ranks_per_host(hosts_of(site.everyone))
    groups = Groups(backend, everyone, ProcessGroup.by_host(size) if 1 < size < site.world else None)
    # connections are made now, not by the first collective that is timed
    for axis in groups.axes.values():
        axis.check(site.device)
        axis.open(site.device)
    return groups


def _ranks_per_host(hosts: list[int]) -> int:
    """The ranks that each host has; 0 where these are not equally many, or not consecutive."""
    size = hosts.count(0)
    return size if hosts == [rank // size for rank in range(len(hosts))] else 0


def _hosts(site: Site) -> Finding:
    hosts = hosts_of(site.everyone)
    counts, names = Counter(hosts), dict(zip(hosts, site.hosts, strict=True))
    words = ", ".join(f"{counts[host]} on {names[host]}" for host in sorted(counts)[:SHOWN])
    words += f" and {len(counts) - SHOWN} more hosts" if len(counts) > SHOWN else ""
    if _ranks_per_host(hosts):
        return Finding("ranks", True, words)
    remedy = "start as many ranks on each host, numbered one after another, as torchrun does; else use no axis of hosts"
    return Finding("ranks", True, words, remedy)


def _gpus(site: Site) -> list[Finding]:
    """Whether each rank has a GPU, which no other has, and has chosen it."""
    if not any(GPU in facts for facts in site.everyone):
        return []
    # every rank names those that share a GPU, and its own choice of device
    own = site.everyone[site.rank]
    found = [
        Finding("one GPU for each rank", False, f"{at_ranks(ranks, site.hosts)} share one", SET_DEVICE)
        for ranks in _sharing(site.everyone)
    ]
    return [*(found or [Finding("one GPU for each rank", True, own.get(GPU, NONE))]), _chosen(own)]


def _sharing(everyone: list[Facts]) -> list[list[int]]:
    """Ranks that share one GPU."""
    taken: dict[tuple[str, str], list[int]] = {}
    for rank, facts in enumerate(everyone):
        taken.setdefault((facts[HOST], facts.get(GPU, NONE)), []).append(rank)
    return [ranks for (_, gpu), ranks in taken.items() if gpu != NONE and len(ranks) > 1]


def _chosen(own: Facts) -> Finding:
    name, local = "device", own.get(LOCAL_RANK, NONE)
    if own.get(GPU, NONE) == NONE:
        return Finding(name, False, f"LOCAL_RANK={local} has no GPU: this rank sees {own.get(GPUS)}", SET_DEVICE)
    # a rank that sees one GPU alone has no choice
    if local not in (NONE, own.get(CURRENT)) and own.get(GPUS) != "1":
        return Finding(name, False, f"LOCAL_RANK={local} computes on GPU {own.get(CURRENT)}", SET_DEVICE)
    return Finding(name, True, f"GPU {own.get(CURRENT)} is set")
