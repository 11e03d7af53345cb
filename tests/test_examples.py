"""The examples end, with replicas that are alike, and with fewer bytes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_replicas_of_an_example_are_alike(example: Path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr
    told = re.findall(r"(\S+), (\d+) steps, (\S+) times fewer bytes", finished.stdout)
    assert len(told) == 2
    assert told[0] == told[1]
    _, steps, ratio = told[0]
    assert int(steps) == 8
    assert float(ratio) > 5
