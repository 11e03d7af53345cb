"""The process of a section: imports, waits until it is its turn, and is ended where it takes too long."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time

from benchmarks.gpu.rows import ROWS
from benchmarks.shared.provenance import ROOT

GRACE_S = 8.0
"""A section that has not ended by itself so long after its time is killed."""
LAST = 12
"""The lines of a crash that are kept."""


class Process:
    """A section's process, which imports torch and then waits for `run`."""

    def __init__(self, section: str, part: int, arguments: argparse.Namespace) -> None:
        self.section, self.part, self._out = section, part, arguments.out
        self._errors = arguments.out / f".{section}{part}.log"
        command = [sys.executable, "-m", *self.module(arguments)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, text=True,
                cwd=ROOT, process_group=0, env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip

    def module(self, arguments: argparse.Namespace) -> list[str]:
        """The module that it runs, with its arguments."""
        own = [self.section, str(self.part), str(arguments.out.resolve()), arguments.device]
        return ["benchmarks.gpu.sections", *own, *["tiny"] * arguments.tiny]

    def run(self, seconds: float) -> bool:
        """Runs it for so long, or for what is left of that when its imports end; returns whether it ended by itself."""
        self.tell(str(time.monotonic() + seconds))
        return self.ends_within(seconds + GRACE_S)

    def ends_within(self, seconds: float) -> bool:
        """Waits for its end, kills it after so long, and writes a row where it failed; returns whether it ended by
        itself."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        printed = self._gather()
        if code:
            self._write(kind="failed", what="the process", error=f"exit code {code}", at=printed[: -LAST - 1 : -1])
        elif code is None:
            self._write(kind="failed", what="the process", error="killed when its time was over", at=[])
        return not code

    def leave_out(self, why: str) -> None:
        """Ends the process, and notes why the rest is not measured."""
        self.kill()
        self._gather()
        self._write(kind="left out", what="the rest", why=why)

    def tell(self, line: str, last: bool = True) -> None:
        """Writes a line to its standard input, which ends behind the last one; nothing where the process has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.close() if last else self._process.stdin.flush()

    def kill(self) -> None:
        """Ends the process and those that it has started, which are of its group."""
        assert self._process.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _gather(self) -> list[str]:
        """Moves what it printed to log.txt; returns the lines."""
        text = self._errors.read_text(errors="replace") if self._errors.exists() else ""
        self._errors.unlink(missing_ok=True)
        with (self._out / "log.txt").open("a") as log:
            log.write(f"--- {self.section} {self.part}\n{text}")
        return text.splitlines()

    def _write(self, **row: object) -> None:
        with (self._out / ROWS).open("a") as rows:
            rows.write(json.dumps({"section": self.section, **row}) + "\n")
