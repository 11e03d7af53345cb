"""Processes that are killed while they save: what is left is whole, or refused whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CRASHES = """
import json, pathlib, sys
from benchmarks.faults.crashes import Crashes
print(json.dumps(Crashes(pathlib.Path(sys.argv[1]), ranks=2, numel=1 << 16).times(20)))
"""


@pytest.mark.long
def test_what_a_crash_leaves_is_whole_or_refused(tmp_path: Path):
    command, root = [sys.executable, "-c", CRASHES, str(tmp_path)], Path(__file__).parents[2]
    found = json.loads(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout)
    assert found["whole"] + found["refused"] == found["crashes"] == 20
