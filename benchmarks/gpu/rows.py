"""The rows that a section finds, written one by one, so that a crash loses none."""

import faulthandler
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from benchmarks.shared.provenance import ROOT

ROWS = "rows.jsonl"
MARKS = ("begun", "put off")
"""The kinds of rows that say how far a process came; no table shows them."""
MOST_S = 60.0
"""Seconds after which an attempt counts as hung: the process prints the stacks of its threads and ends."""


class Rows:
    """The rows of one section's process. What an earlier process of this section had begun is not begun again."""

    def __init__(self, folder: Path, section: str, seconds: float, part: int = 0, parts: int = 1) -> None:
        self._part, self._parts = part, parts
        self._path, self.folder, self.section = folder / ROWS, folder, section
        self._end = time.monotonic() + seconds
        last = {row["what"]: row["kind"] for row in read(folder, section) if row["kind"] in MARKS}
        self._begun = {what for what, kind in last.items() if kind == "begun"}

    @property
    def part(self) -> list[str]:
        """The number of this process, and of how many."""
        return [str(self._part), str(self._parts)]

    def shared(self, count: int) -> "Rows":
        """These rows, with the first of `count` equal shares of the time that is left."""
        share = copy(self)
        share._end = time.monotonic() + self.left_s / count
        return share

    @property
    def left_s(self) -> float:
        """Seconds that the section still has."""
        return self._end - time.monotonic()

    def add(self, kind: str, **cells: Any) -> None:
        """Writes a row of the table `kind`."""
        with self._path.open("a") as file:
            file.write(json.dumps({"section": self.section, "kind": kind, **cells}) + "\n")

    def each(self, what: Any, needs_s: float = 0.0) -> Iterator[Any]:
        """Those of `what` that are this process's part and were not begun before, by their text, as long as there are
        so many seconds."""
        for number, one in enumerate(list(what)[self._part :: self._parts]):
            if self.left_s < needs_s + 1.0:
                self.add("left out", what=f"{one} and after it", why=f"the time was over after {number}")
                return
            if str(one) not in self._begun:
                yield one

    @contextmanager
    def attempt(self, what: Any, most_s: float = MOST_S) -> Iterator[None]:
        """A part of the section whose error is a row, and after which the section goes on."""
        self.add("begun", what=str(what))
        faulthandler.dump_traceback_later(most_s, exit=True)
        try:
            yield
        except Exception as error:
            self.fail(what, error)
            raise_if_dead()
        finally:
            faulthandler.cancel_dump_traceback_later()

    def put_off(self, what: Any) -> None:
        """Notes that this is ready, and measured later. Where the process ends before a further row "begun", the next
        process begins it anew."""
        self.add("put off", what=str(what))

    def fail(self, what: Any, error: BaseException) -> None:
        """Writes an error as a row."""
        self.add("failed", what=str(what), error=_first_line(error), at=_places(error))


def read(folder: Path, section: str = "") -> list[dict[str, Any]]:
    """The rows so far, of one section or of all."""
    path = folder / ROWS
    # up to the last end of a line: another process may be writing the next one
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    rows = [json.loads(line) for line in whole.splitlines()]
    return [row for row in rows if not section or row["section"] == section]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def _places(error: BaseException) -> list[str]:
    """Where it came from: the innermost line, then the last ones of this repository; then its cause."""
    frames = traceback.extract_tb(error.__traceback__)
    cause = error.__cause__
    ours = [frame for frame in frames if frame.filename.startswith(str(ROOT))][-3:]
    texts = [f"{frame.filename.split('/')[-1]}:{frame.lineno} {frame.line}" for frame in [frames[-1], *ours[::-1]]]
    return [*texts, *([_first_line(cause), *_places(cause)] if cause and cause.__traceback__ else [])]


def raise_if_dead() -> None:
    """Raises where CUDA computes no more in this process, as after an illegal access: a new process has to go on."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
