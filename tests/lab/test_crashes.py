"""Processes that are killed while they save: what is left is whole, or refused whole."""

import json
from pathlib import Path

import pytest

from tests.support.ranks import run_python

CRASHES = """
import json, pathlib, sys
from benchmarks.faults.crashes import Crashes
print(json.dumps(Crashes(pathlib.Path(sys.argv[1]), ranks=2, numel=1 << 16).times(20)))
"""


@pytest.mark.long
def test_what_a_crash_leaves_is_whole_or_refused(tmp_path: Path):
    found = json.loads(run_python(["-c", CRASHES, str(tmp_path)]))
    assert found["whole"] + found["refused"] == found["crashes"] == 20
