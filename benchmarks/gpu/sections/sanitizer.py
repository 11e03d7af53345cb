"""`compute-sanitizer` over the kernels of every row, in steps that are computed: reads and writes outside of memory.

Every tensor is an allocation of its own, so that none of torch's cached memory hides what lies outside. A process under
the sanitizer takes one part of the rows and says which one it begins; what is printed until the next is that row's.
"""

import os
import shutil
import subprocess
import sys

from benchmarks.gpu.device import Device
from benchmarks.gpu.jobs import SLOTS, cases, job, plan
from benchmarks.gpu.rows import Rows
from benchmarks.shared.provenance import ROOT
from tests.support.harness import draw

ROW, STEPS = "row: ", 2
TOOL = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--print-limit", "20"]


def run(rows: Rows, device: Device) -> None:
    """The section `sanitizer`."""
    if device.is_gpu and not shutil.which(TOOL[0]):
        raise RuntimeError(f"{TOOL[0]} is not on the PATH; it comes with CUDA")
    command = [*(TOOL if device.is_gpu else []), sys.executable, "-m", __name__, device.device.type, *rows.part]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    what, found = "the start", list[str]()
    for line in process.stdout:
        if line.startswith(ROW):
            note(rows, what, found)
            what, found = line.removeprefix(ROW).strip(), []
            rows.add("begun", what=what)
        elif "=========" in line and len(found) < 8:
            found.append(line.strip("= \n"))
        elif "Error" in line:
            found.append(line.strip())
    note(rows, what, found)
    rows.add("exit code", what=str(rows.part), ok=process.wait() == 0)


def note(rows: Rows, what: str, found: list[str]) -> None:
    """Adds a row's result: nothing but the tool's own summary may have been printed."""
    errors = [line for line in found if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY: 0"))]
    rows.add("memory", what=what, ok=not errors, found=errors)


def main() -> None:
    """One part of the rows, in the process that is checked."""
    kind, part, parts = sys.argv[1:]
    device = Device.of(kind, kind != "cuda")
    for case in cases(device)[int(part) :: int(parts)]:
        print(f"{ROW}{case}", flush=True)
        with job(device, plan(case), records=False) as running:
            for number in range(STEPS):
                running.step(draw(SLOTS, len(running.runtimes), number))


if __name__ == "__main__":
    main()
