"""A process of a section: `python -m benchmarks.gpu.sections NAME PART FOLDER DEVICE [tiny]`. It imports, then reads
its seconds from standard input."""

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.sections import SECTIONS

name, part, folder, kind, *tiny = sys.argv[1:]
section = import_module(f"benchmarks.gpu.sections.{SECTIONS[name].module or name}")

from benchmarks.gpu.device import Device  # noqa: E402
from benchmarks.gpu.rows import Rows, raise_if_dead  # noqa: E402

# all is imported: wait for this section's turn
if seconds := sys.stdin.readline():
    rows = Rows(Path(folder), name, float(seconds), int(part), 1 if tiny else SECTIONS[name].parts)
    try:
        section.run(rows, Device.of(kind, bool(tiny)))
    except Exception as error:
        rows.fail("the section", error)
        raise_if_dead()
