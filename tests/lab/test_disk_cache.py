"""Arrays that are kept on disk between runs."""

import pwd
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
        with pytest.warns(UserWarning, match="anew by each process: no space is left; set XDG_CACHE_HOME"):
            made = cached("words", [], lambda: {"tokens": numpy.arange(3)})
        assert made["tokens"].tolist() == [0, 1, 2]
    # nothing stays of it, and a process of the same number begins anew
    assert not list(tmp_path.glob("*/*"))
    for _ in range(2):
        assert cached("words", [], lambda: {"tokens": numpy.arange(3)})["tokens"].tolist() == [0, 1, 2]
    assert len(list(tmp_path.glob("*/*"))) == 1


def test_a_user_without_a_home_makes_them_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    # `/.cache`, which such a user may not write
    monkeypatch.setattr(Path, "mkdir", lambda self, **options: {}[self] if self.parts[1] != ".cache" else denied(self))
    with pytest.warns(UserWarning, match="XDG_CACHE_HOME"):
        assert cached("words", [], lambda: {"tokens": numpy.arange(3)})["tokens"].tolist() == [0, 1, 2]


def denied(path: Path) -> None:
    raise PermissionError(f"{path} is not yours")
