"""The examples end, on their ranks with replicas that are alike and with fewer bytes, and as one process."""

import re
from pathlib import Path

import pytest

from tests.support.ranks import run_python, run_ranks
from tests.support.small_files import write_idx

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(
    set(FOLDER.glob("*.py")) - {FOLDER / "with_ray.py", FOLDER / "with_torchft.py"}
)  # have tests of their own
ON_FOUR = {"with_fsdp2", "with_accelerate_hsdp", "with_torchtitan"}  # two hosts of two ranks
APART = {"with_deepspeed": "deepspeed", "with_megatron": "megatron.core", "with_torchtitan": "torchtitan"}
"""The packages of those that run in no gate: `make test-deepspeed`, `test-megatron`, `test-titan`."""
TRAINERS = [each for each in EXAMPLES if "gradwire.integrations" in each.read_text() and each.stem not in APART]
REFUSED = {"mnist", "with_dion"}  # without files, and where one rank exchanges no updates
ALONE = [each for each in EXAMPLES if each.stem not in ON_FOUR | REFUSED and each not in TRAINERS]
each = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
under_trainers = pytest.mark.parametrize("example", TRAINERS, ids=lambda path: path.stem)


FRAMEWORKS = ("lightning", "transformers", "accelerate")


def imports_of(example: Path) -> list[str]:
    """The frameworks that take seconds to import."""
    return [name for name in FRAMEWORKS if re.search(rf"^(from|import) {name}", example.read_text(), re.MULTILINE)]


def skip_without_its_package(example: Path) -> None:
    if example.stem in APART:
        pytest.importorskip(APART[example.stem], reason="runs in no gate: tests/README.md", exc_type=ImportError)


@each
def test_replicas_of_an_example_are_alike(example: Path, tmp_path: Path):
    skip_without_its_package(example)
    if example.stem == "mnist":
        write_idx(tmp_path)
    ranks = 4 if example.stem in ON_FOUR else 2
    output = run_ranks([str(example)], ranks, imports=imports_of(example), cwd=tmp_path)
    told = re.findall(r"(-?\d+\.\d+),? [^\n]*?(\d+) steps, ([\d.]+) times fewer bytes", output)
    assert len(told) == ranks
    assert len(set(told)) == 1
    _, steps, ratio = told[0]
    assert int(steps) >= 8
    assert float(ratio) > 4
    pages = "".join((FOLDER.parent / "docs" / page).read_text() for page in ("practice.md", "integrations.md"))
    assert [figure for figure in re.findall(r"[\d,]+ bytes a step", output) if figure not in pages] == []


@each
def test_an_example_that_may_meet_over_nccl_has_its_model_on_the_gpu(example: Path):
    text = example.read_text()
    over_nccl = re.search(r"dist\.init_process_group\(\)|gw\.init\(\)", text)
    assert not over_nccl or re.search(r"\.to\((place|kind)\)", text)


def test_every_example_is_a_recipe_of_the_site():
    page = (FOLDER.parent / "docs" / "recipes.md").read_text()
    assert sorted(re.findall(r"^\[examples/(\w+\.py)\]\(\.\./examples/\1\)$", page, re.MULTILINE)) == [
        path.name for path in sorted(FOLDER.glob("*.py"))
    ]


@under_trainers
def test_an_example_runs_as_one_process(example: Path, tmp_path: Path):
    assert "<Handle idle: one rank, or detached; no plan; 0 steps>" in run_python(
        [str(example)], imports=imports_of(example), cwd=tmp_path
    )


def test_the_example_of_mnist_runs_as_one_process(tmp_path: Path):
    write_idx(tmp_path, zipped=True)
    assert "0 steps" in run_python([str(FOLDER / "mnist.py"), "--epochs", "1"], cwd=tmp_path)


@pytest.mark.parametrize("example", ALONE, ids=lambda path: path.stem)
def test_an_example_runs_on_one_rank(example: Path, tmp_path: Path):
    skip_without_its_package(example)
    assert re.search(r"\d+ steps, (inf|nan|[\d.]+) times fewer bytes", run_ranks([str(example)], 1, cwd=tmp_path))


@under_trainers
def test_an_example_is_short(example: Path):
    assert len(example.read_text().splitlines()) <= 30
