"""A process of a section: `python -m benchmarks.gpu.sections NAME PART FOLDER DEVICE [tiny]`. It imports, then reads
from standard input when it has to end: a time of `time.monotonic`, whose clock all processes share."""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.sections import SECTIONS

name, part, folder, kind, *tiny = sys.argv[1:]
section = import_module(f"benchmarks.gpu.sections.{SECTIONS[name].module or name}")

from benchmarks.gpu.device import Device  # noqa: E402
from benchmarks.gpu.rows import Rows, raise_if_dead  # noqa: E402
from gradwire.lab.network.nsenter import die_with  # noqa: E402

# where the script is cut off, this process ends too, and does not stay on the GPU
die_with(os.getppid())
# all is imported: wait for this section's turn
if end := sys.stdin.readline():
    rows = Rows(Path(folder), name, float(end) - time.monotonic(), int(part), 1 if tiny else SECTIONS[name].parts)
    try:
        section.run(rows, Device.of(kind, bool(tiny)))
    except Exception as error:
        rows.fail("the section", error)
        raise_if_dead()
