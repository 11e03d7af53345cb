"""Other default dtypes than float32, as torchtune sets one, change nothing that is computed."""

from functools import cache
from pathlib import Path

import pytest

from tests.support.ranks import run_python

SCRIPT = Path(__file__).parents[1] / "support" / "default_dtype.py"


@cache
def digests(dtype: str, *rows: int) -> dict[str, str]:
    """A digest of what each of these rows of `cases.py` computes under this default."""
    out = run_python([str(SCRIPT), dtype, *map(str, rows)])
    return dict(line.rsplit(" ", 1) for line in out.splitlines())


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        ("bfloat16", (0, 6)),
        pytest.param("bfloat16", (0, 2), marks=pytest.mark.long),
        pytest.param("float64", (1, 2), marks=pytest.mark.long),
    ],
    ids=["bfloat16, every sixth row", "bfloat16, even rows", "float64, odd rows"],
)
def test_every_row_computes_the_same_under_this_default(dtype: str, rows: tuple[int, int]):
    theirs, ours = digests("float32", *rows), digests(dtype, *rows)
    assert {row for row in theirs if ours.get(row) != theirs[row]} == set()
