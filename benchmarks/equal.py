"""Are losses those of older code, bit for bit? Then what was measured of them there is no older than the code.

    git clone . ../older && git -C ../older checkout COMMIT && make -C ../older .venv
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

from provenance import RESULTS, ROOT, code, load, save

STEPS = 12
FILE = "trained.json"
TRAIN = ["benchmarks/fidelity.py", "--steps", str(STEPS), "--seeds", "0", "--save", FILE]
TELL = ["-c", "import sys; sys.path.insert(0, 'benchmarks'); import provenance; print(provenance.code('fidelity'))"]


def main() -> None:
    roots = [Path(sys.argv[1]).resolve(), ROOT]
    older, now = (_trained(process, root) for process, root in [(_train(root), root) for root in roots])
    if different := [name for name in older.keys() | now.keys() if older.get(name) != now.get(name)]:
        sys.exit("\n".join(["these do not train alike:", *map(str, sorted(different))]))
    told = subprocess.run([_python(roots[0]), *TELL], cwd=roots[0], check=True, capture_output=True, text=True)
    pairs = load("equal")["pairs"] if (RESULTS / "equal.json").exists() else []
    pairs.append({"of": told.stdout.strip(), "is": code("fidelity"), "trainings": len(now), "steps": STEPS})
    save("equal.json", pairs=pairs)
    print(f"{len(now)} trainings of {STEPS} steps are equal to the last bit")


def _train(root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([_python(root), *TRAIN], cwd=root, stdout=subprocess.DEVNULL)


def _python(root: Path) -> str:
    return str(root / ".venv/bin/python")


def _trained(process: subprocess.Popen[bytes], root: Path) -> dict[str, dict[str, Any]]:
    """What came of each training, once they are over: steps, losses, bytes."""
    if process.wait():
        sys.exit(f"fidelity.py failed in {root}")
    file = root / "benchmarks/results" / FILE
    runs = json.loads(file.read_text())["runs"]
    file.unlink()
    return {f"{run['task']}, {run['name']} at {run['lr']}": run for run in runs}


if __name__ == "__main__":
    main()
