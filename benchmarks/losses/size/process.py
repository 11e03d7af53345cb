"""The processes of at_size.py, one for each configuration."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.processes import Process
from benchmarks.gpu.rows import read

LOOKS_S = 0.2
"""Seconds from look to look."""


class Trained(Process):
    """The process of a configuration, which reads lines from its standard input and writes rows."""

    def module(self, arguments: argparse.Namespace) -> list[str]:
        size = "tiny" if arguments.tiny else "full"
        own = [str(arguments.out.resolve()), str(arguments.text), arguments.device, size, str(arguments.rate)]
        return ["benchmarks.losses.size.training", self.section, *own]

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None


def have_written(processes: Sequence[Trained], kind: str, out: Path, end: float) -> list[Trained]:
    """Waits for a row of this kind from each process, until the time `end` of `time.monotonic`. Returns those that
    wrote one; the others are ended, and rows say why."""
    while True:
        there = {row["section"] for row in read(out) if row["kind"] == kind}
        late = [process for process in processes if process.section not in there]
        if time.monotonic() > end or not any(process.runs for process in late):
            break
        time.sleep(LOOKS_S)
    for process in late:
        if process.runs:
            process.leave_out(f"not {kind} in time")
        else:
            process.ends_within(0.0)
    return [process for process in processes if process not in late]
