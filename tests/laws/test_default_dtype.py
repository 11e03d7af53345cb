"""Other default dtypes than float32, as torchtune sets one, change nothing that is computed."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "default_dtype.py"


@cache
def digests(dtype: str) -> dict[str, str]:
    """Of each row of `cases.py`, what it computes under this default."""
    done = subprocess.run([sys.executable, SCRIPT, dtype], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"after {done.stdout.splitlines()[-1:]}: {done.returncode} {done.stderr[-2000:]}"
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_every_row_computes_the_same_under_this_default(dtype: str):
    theirs, ours = digests("float32"), digests(dtype)
    assert {row for row in theirs if ours.get(row) != theirs[row]} == set()
