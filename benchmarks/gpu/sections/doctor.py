"""`gradwire doctor` with one rank, by itself and under torchrun: its report, line by line."""

import subprocess
import sys

from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import Rows


def run(rows: Rows, device: Device) -> None:
    """The section `doctor`."""
    doctor = ["-m", "gradwire", "doctor"]
    ways = {
        "gradwire doctor": [*doctor, "--ranks", "1", "--device", device.device.type],
        "under torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", *doctor],
    }
    for name in rows.each([*ways][: device.size(2, 1)]):
        with rows.attempt(name, most_s=130):
            found = subprocess.run(
                [sys.executable, *ways[name]], capture_output=True, text=True, timeout=120, check=False
            )
            for line in found.stdout.splitlines():
                rows.add(name, says=line.strip())
            last = found.stderr.strip().splitlines()[-1:]
            rows.add("exit code", what=name, ok=found.returncode == 0, code=found.returncode, last=last)
            print(found.stderr)
