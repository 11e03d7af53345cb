"""`gradwire doctor`: checks of the cluster that it is started on."""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import typer

from gradwire.cli.console import console, mistakes
from gradwire.cli.run_setup import leads
from gradwire.lab.doctor.examination import examine
from gradwire.lab.doctor.facts import hosts_of
from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.joining import device_here, joined, kind_of
from gradwire.lab.doctor.site import Site
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.launch import launch
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.network.link import LOOPBACK, link_of
from gradwire.lab.network.network import Network
from gradwire.launched import is_launched
from gradwire.report import doctor_report as report

WRONG = 1


def doctor(ranks: int | None, hosts: int | None, link: str | None, device: str | None) -> None:
    """Examines the ranks that were started, or starts some here. Ends with exit code 1 where there is a fault."""
    # started by itself: ranks of this machine run this same command
    if not is_launched():
        return _start(ranks, hosts, link, device)
    with mistakes():
        if any(given is not None for given in (ranks, hosts, link)):
            raise ValueError("these ranks were started already: leave --ranks, --hosts and --link out")
        here = device_here(kind_of(device))
    # examine the cluster from this rank
    shown = _Shown(leads())
    with mistakes(), joined(here) as site:
        examine(site, shown)
        code = shown.end()
    if not site.works:  # a thread that hangs would keep the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise typer.Exit(code)


def _start(ranks: int | None, hosts: int | None, link: str | None, device: str | None) -> None:
    """Has ranks of this machine run the same command, on emulated hosts where there is a link."""
    with mistakes():
        kind, shaped = kind_of(device), link_of(link or LOOPBACK)
        if hosts is not None and not shaped:
            raise ValueError("--hosts are emulated hosts behind links: give --link, such as --link 1gbit")
        if shaped and kind == "cuda":
            raise ValueError("GPUs of one machine go around an emulated link: give --device cpu with --link")
        ranks = ranks or (max(1, torch.cuda.device_count()) if kind == "cuda" else max(2, hosts or 0))
        cluster = LabCluster(ranks, shaped, kind, _ranks_per_host(ranks, hosts))
    print(f"starting {cluster}", file=sys.stderr, flush=True)
    with Network(cluster.hosts, cluster.link) if cluster.link else nullcontext() as network:
        try:
            launch(["-m", "gradwire", "doctor", "--device", kind], cluster.ranks, network=network)
        except RankFailed as failed:
            if (failed.rank, failed.exit_code) != (0, WRONG):  # rank 0 has shown the faults
                raise
            raise typer.Exit(WRONG) from failed


def _ranks_per_host(ranks: int, hosts: int | None) -> int:
    if hosts is None:
        return 1
    if hosts < 1 or ranks % hosts:
        raise ValueError(f"{ranks} ranks do not fill {hosts} hosts: give a divisor of {ranks} to --hosts")
    return ranks // hosts


class _Shown:
    """Prints each check's name when it begins, and its findings when it has ended; on a rank that does not lead
    nothing, unless rank 0, which would, is lost."""

    def __init__(self, leads: bool) -> None:
        self._leads, self._sections = leads, dict[str, Sequence[Finding]]()
        self._width = min(report.WIDTH, console().width)

    def begins(self, check: str) -> None:
        if self._leads:
            self._sections[check] = []
            print(check, flush=True)

    def met(self, site: Site) -> None:
        if self._leads:
            hosts = len(set(hosts_of(site.everyone)))
            print(report.heading(site.world, hosts, site.device.type), flush=True)

    def found(self, check: str, findings: Sequence[Finding]) -> None:
        if self._leads:
            self._sections[check] = findings
            print(report.findings_of(findings, self._width), flush=True)

    def ended(self, check: str, finding: Finding, first_is_lost: bool) -> None:
        if self._leads or first_is_lost:
            out = sys.stdout if self._leads else sys.stderr
            if check not in self._sections:
                print(check, file=out)
            self._sections[check] = [finding]
            print(report.findings_of([finding], self._width), file=out, flush=True)

    def end(self) -> int:
        """Prints the verdict; returns the exit code."""
        if self._leads:
            print(report.verdict(self._sections), flush=True)
        return WRONG if report.faulty(self._sections) else 0
