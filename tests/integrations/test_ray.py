"""Under Ray Train, whose installation takes 500 MB and its start minutes: `make test-ray`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="`make test-ray` installs it")
ROOT = Path(__file__).parents[2]


def said(script: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / script), *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False, cwd=folder)
    assert finished.returncode == 0, finished.stderr[-4000:]
    return finished.stdout + finished.stderr


def test_workers_go_on_from_what_a_checkpoint_kept(tmp_path: Path):
    said("tests/processes/with_ray.py", tmp_path, str(tmp_path))


def test_the_example_compresses_and_is_short(tmp_path: Path):
    assert "times fewer bytes" in said("examples/with_ray.py", tmp_path)
    assert list(tmp_path.rglob("gradwire.pt"))
    assert len((ROOT / "examples" / "with_ray.py").read_text().splitlines()) <= 30
