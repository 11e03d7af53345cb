"""Does this code train like an older checkout, to the last bit?

    git clone . ../older && git -C ../older checkout COMMIT && make -C ../older .venv/.lab
    python benchmarks/losses/equal.py ../older                       # 7 minutes, under any load

Trains every task of `fidelity.py` in every configuration for a few steps with both codes, compares losses and bytes to
their last digit, and names the trainings that differ.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.shared.provenance import ROOT

STEPS = 12
FILE = "trained.json"
TRAIN = ["--steps", str(STEPS), "--seeds", "0", "--save", FILE]


def main() -> None:
    roots = [Path(sys.argv[1]).resolve(), ROOT]
    running = [(_train(root), root) for root in roots]
    older, now = (_by_name(_trained(process, root)) for process, root in running)
    if different := [name for name in older.keys() | now.keys() if older.get(name) != now.get(name)]:
        sys.exit("\n".join(["these trainings differ:", *sorted(different)]))
    print(f"{len(now)} trainings of {STEPS} steps are equal to the last bit")


def _train(root: Path) -> subprocess.Popen[bytes]:
    _file(root).unlink(missing_ok=True)  # of an interrupted run: fidelity.py skips the runs in it
    (script,) = root.glob("benchmarks/**/fidelity.py")  # older checkouts have it in another folder
    return subprocess.Popen([root / ".venv/bin/python", script, *TRAIN], cwd=root, stdout=subprocess.DEVNULL)


def _trained(process: subprocess.Popen[bytes], root: Path) -> list[dict[str, Any]]:
    """Waits for fidelity.py; the trainings that it has written."""
    if process.wait():
        sys.exit(f"fidelity.py failed in {root}")
    found = json.loads(_file(root).read_text())["runs"]
    _file(root).unlink()
    return found


def _file(root: Path) -> Path:
    return root / "benchmarks/results" / FILE


def _by_name(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The steps, losses and bytes of each training."""
    return {f"{run['task']}, {run['name']} at {run['lr']}": run for run in runs}


if __name__ == "__main__":
    main()
