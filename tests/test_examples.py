"""The examples end, on their ranks with replicas that are alike and with fewer bytes, and as one process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(
    set(FOLDER.glob("*.py")) - {FOLDER / "with_ray.py", FOLDER / "with_torchft.py"}
)  # have tests of their own
ON_FOUR = {"with_fsdp2", "with_accelerate_hsdp", "with_torchtitan"}  # two hosts of two ranks
TRAINERS = [example for example in EXAMPLES if "gradwire.integrations" in example.read_text()]
each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
under_trainers = pytest.mark.parametrize("example", TRAINERS, ids=lambda path: path.stem)


def said(example: Path, folder: Path, *launcher: str) -> str:
    command = [sys.executable, *launcher, str(example)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@each
def test_replicas_of_an_example_are_alike(example: Path, tmp_path: Path):
    if example.stem == "with_torchtitan":
        pytest.importorskip("torchtitan", reason="its packages take 400 MB: make test-titan", exc_type=ImportError)
    ranks = 4 if example.stem in ON_FOUR else 2
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    output = said(example, tmp_path, *launcher)  # of all ranks, whose lines may run into each other
    told = re.findall(r"(-?\d+\.\d+),? [^\n]*?(\d+) steps, ([\d.]+) times fewer bytes", output)
    assert len(told) == ranks
    assert len(set(told)) == 1
    _, steps, ratio = told[0]
    assert int(steps) >= 8
    assert float(ratio) > 4


@under_trainers
def test_an_example_runs_as_one_process(example: Path, tmp_path: Path):
    assert "<Handle idle: one rank, or detached; no plan; 0 steps>" in said(example, tmp_path)


@under_trainers
def test_an_example_is_short(example: Path):
    assert len(example.read_text().splitlines()) <= 30
