"""Under other trainers: saved and resumed by them, on as many ranks and on others."""

from pathlib import Path

import pytest

from tests.support.ranks import run_python, run_ranks

SCRIPT = Path(__file__).parents[1] / "processes" / "trainers.py"
IMPORTS = {"accelerate": "accelerate", "huggingface": "transformers.trainer"}


def run(world: int, name: str, folder: Path, phase: str) -> None:
    argv, imports = [str(SCRIPT), name, str(folder), phase], [IMPORTS.get(name, "lightning")]
    if world > 1:
        run_ranks(argv, world, imports=imports, cwd=folder)
    else:
        run_python(argv, imports=imports, cwd=folder)


@pytest.mark.parametrize(
    ("name", "worlds"),
    [("accelerate", (3, 1)), ("lightning", (1,)), ("lightning_strategy", (3,)), ("huggingface", (3,))],
)
def test_a_training_goes_on_from_what_its_trainer_saved(name: str, worlds: tuple[int, ...], tmp_path: Path):
    pytest.importorskip({"huggingface": "transformers"}.get(name, name.removesuffix("_strategy")))
    run(2, name, tmp_path, "save")
    for world in worlds:
        run(world, name, tmp_path, "resume")
