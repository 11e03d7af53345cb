"""Are losses those of older code, bit for bit? Then what was measured of them there is no older than the code.

    git clone . ../older && git -C ../older checkout COMMIT && make -C ../older .venv/.lab
    python benchmarks/equal.py ../older                       # 7 minutes; any load will do

Trains every task of `fidelity.py` in every of its configurations for some steps with both codes, and compares losses
and bytes to their last digit. Adds to benchmarks/results/equal.json that the two codes train alike; where they do not,
it names what differs and writes nothing.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from provenance import RESULTS, ROOT, load, save

STEPS = 12
FILE = "trained.json"
TRAIN = ["benchmarks/fidelity.py", "--steps", str(STEPS), "--seeds", "0", "--save", FILE]


def main() -> None:
    roots = [Path(sys.argv[1]).resolve(), ROOT]
    found = [_trained(process, root) for process, root in [(_train(root), root) for root in roots]]
    (of, older), (is_, now) = ((result["code"], _by_name(result["runs"])) for result in found)
    if different := [name for name in older.keys() | now.keys() if older.get(name) != now.get(name)]:
        sys.exit("\n".join(["these do not train alike:", *sorted(different)]))
    pairs = load("equal")["pairs"] if (RESULTS / "equal.json").exists() else []
    pairs.append({"of": of, "is": is_, "trainings": len(now), "steps": STEPS})
    save("equal.json", pairs=pairs)
    print(f"{len(now)} trainings of {STEPS} steps are equal to the last bit")


def _train(root: Path) -> subprocess.Popen[bytes]:
    _file(root).unlink(missing_ok=True)  # of a run that was broken off: fidelity.py does not train again what is there
    return subprocess.Popen([root / ".venv/bin/python", *TRAIN], cwd=root, stdout=subprocess.DEVNULL)


def _trained(process: subprocess.Popen[bytes], root: Path) -> dict[str, Any]:
    """What fidelity.py has written, once it is over."""
    if process.wait():
        sys.exit(f"fidelity.py failed in {root}")
    found = json.loads(_file(root).read_text())
    _file(root).unlink()
    return found


def _file(root: Path) -> Path:
    return root / "benchmarks/results" / FILE


def _by_name(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What came of each training: steps, losses, bytes."""
    return {f"{run['task']}, {run['name']} at {run['lr']}": run for run in runs}


if __name__ == "__main__":
    main()
