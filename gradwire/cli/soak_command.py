"""`gradwire soak`: long runs under faults."""

from math import inf
from pathlib import Path

import typer

from gradwire.cli.console import mistakes, show, show_and_write
from gradwire.cli.run_setup import run_folder, writing_to
from gradwire.lab.network.link import LOOPBACK, link_of
from gradwire.lab.soak.faults import read_kinds
from gradwire.lab.soak.outcome import Followed, Soaked
from gradwire.lab.soak.soak import SLOW, soaking
from gradwire.launched import is_launched
from gradwire.report import soak_report as report


def soak(minutes: float, faults: str, hosts: int, link: str | None, seed: int, out: Path) -> None:
    """Runs a job under faults; writes and prints the recoveries. Ends with exit code 1 where a law did not hold, or
    nothing was tested."""
    with mistakes():
        if is_launched():
            raise ValueError("a soak starts ranks of its own: start it by itself, not as one of several ranks")
        if not 0 < minutes < inf:
            raise ValueError(f"{minutes:g} minutes are no time: give a number above 0, such as --minutes 20")
        kinds, shaped = read_kinds(faults), link_of(link or LOOPBACK)
        if "slow" in kinds and shaped and shaped.bits_per_second <= SLOW.bits_per_second:
            words = f"a {shaped} link is not faster than {SLOW}, to which the fault slow sets it"
            raise ValueError(f"{words}: give a faster --link, or --faults without slow")
    folder = run_folder(out, "soak")
    with writing_to(folder), soaking(hosts, shaped, seed, folder) as job:
        # recoveries are shown as they come; all of it in the end, even where the run is stopped
        try:
            job.run(minutes, kinds, lambda followed: _show(job.came, followed))
        finally:
            if job.came.faults or job.came.broken:
                shown = report.table(job.came), report.by_front_end(job.came), report.verdict(job.came)
                show_and_write(shown, lambda: report.write(folder, job.came))
    if not (job.came.faults or job.came.broken):
        show(report.verdict(job.came))
    if job.came.broken or not job.came.faults:
        raise typer.Exit(1)


def _show(came: Soaked, followed: Followed) -> None:
    went_on = "hung" if followed.seconds is None else f"went on after {followed.seconds:.1f} s"
    print(f"{len(came.faults)}. {followed.front_end}, {followed.kind} of {followed.victim}: {went_on}", flush=True)
