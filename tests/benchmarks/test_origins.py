"""Rows that a script keeps from an earlier run keep their origin, and ranks that fail leave no file among results."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared import provenance, ranks
from gradwire.lab.launch import launch

RUNS: dict[str, tuple[str, list[str], dict[str, Any], Any]] = {
    "local_steps": (
        "local_steps", ["--only", "dense", "--seeds", "1", "--ranks", "2"],
        {"rows": [{"name": "dense", "seed": 0, "steps": 2250, "ranks": 4}]}, {},
    ),
    "shard_losses": ("shard_losses", ["--seeds", "2"], {"steps": 500, "rows": [{"seed": 0}]}, [{"seed": 1}]),
    "time_to_loss": (
        "time_to_loss_128_curves", ["--link", "loopback"],
        {"steps": 2250, "runs": [{"name": "dense", "steps": 2250, "seed": 0, "curve": [[2250, 1.0]]}]}, [[2250, 1.0]],
    ),
}  # fmt: skip
"""By scripts: the result, arguments, what an earlier run has found, and what ranks find now."""


@pytest.mark.parametrize("script", RUNS)
def test_rows_of_an_earlier_run_keep_their_origin(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    result, arguments, found, cell = RUNS[script]
    before = {"date": "2026-11-25", "commit": "1ad5b96", "machine": "m", "command": "python before.py"}
    path = tmp_path / f"{result}.json"
    path.write_text(json.dumps(before | found))
    module = import_module(f"benchmarks.losses.{script}")
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path, raising=False)
    monkeypatch.setattr(module, "collect", lambda *args: cell)
    for shows in ("table", "cells"):
        monkeypatch.setattr(module, shows, lambda *args: [], raising=False)
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *arguments])
    module.main()
    kept = json.loads(path.read_text())
    assert len(kept.get("rows") or kept["runs"]) > 1
    assert provenance.origins(kept)[1:] == [before | {"rows": [0]}]


def test_an_origin_goes_with_its_last_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    for command, cells in (("first", "ab"), ("second", "b"), ("third", "b"), ("fourth", "a")):
        monkeypatch.setenv(provenance.CALLED, command)
        kept = [row for row in provenance.known_runs("auto.json", "rows") if row["cell"] not in cells]
        for cell in cells:
            kept.append({"cell": cell, "by": command})
            provenance.save_more("auto.json", "rows", rows=kept)
    found = json.loads((tmp_path / "auto.json").read_text())
    assert [origin["command"] for origin in provenance.origins(found)] == ["fourth", "third"]


def test_ranks_that_fail_behind_their_result_leave_no_file_that_pages_would_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def failing(argv: list[str], *others: Any, **options: Any) -> None:
        Path(options["env"][ranks.FOUND]).write_text("{}")
        raise RuntimeError("a rank has aborted")

    monkeypatch.setattr(launch, "launch", failing)
    monkeypatch.setattr(ranks, "RESULTS", tmp_path, raising=False)
    monkeypatch.setenv(provenance.CALLED, "python steps.py")
    with pytest.raises(RuntimeError, match="a rank has aborted"):
        ranks.collect("steps.py", [], 2, "loopback")
    assert not [*tmp_path.glob("*.json")]
