"""Under other trainers: saved and resumed by them, on as many ranks and on others."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "processes" / "trainers.py"


def run(world: int, name: str, folder: Path, phase: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    command = [sys.executable, *launcher, str(SCRIPT), name, str(folder), phase]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
    assert finished.returncode == 0, finished.stderr[-4000:]


@pytest.mark.parametrize(
    ("name", "worlds"),
    [("accelerate", (3, 1)), ("lightning", (1,)), ("lightning_strategy", (3,)), ("huggingface", (3,))],
)
def test_a_training_goes_on_from_what_its_trainer_saved(name: str, worlds: tuple[int, ...], tmp_path: Path):
    pytest.importorskip({"huggingface": "transformers"}.get(name, name.removesuffix("_strategy")))
    run(2, name, tmp_path, "save")
    for world in worlds:
        run(world, name, tmp_path, "resume")
