"""Arrays that are kept on disk between runs."""

from pathlib import Path

import numpy
import pytest

from gradwire.lab.workloads.disk_cache import cached


def test_what_an_ended_process_left_behind_disturbs_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def full(*arguments: object, **options: object) -> None:
        raise OSError("no space is left")

    with monkeypatch.context() as patched:
        patched.setattr(numpy, "save", full)
        with pytest.raises(OSError, match="no space"):
            cached("words", [], lambda: {"tokens": numpy.arange(3)})
    # nothing stays of it, and a process of the same number begins anew
    assert not list(tmp_path.glob("*/*"))
    for _ in range(2):
        assert cached("words", [], lambda: {"tokens": numpy.arange(3)})["tokens"].tolist() == [0, 1, 2]
    assert len(list(tmp_path.glob("*/*"))) == 1
