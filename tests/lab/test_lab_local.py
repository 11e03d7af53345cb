"""Local steps in the lab: beside configurations that send every step."""

import json
import re
from pathlib import Path

import pytest

import gradwire as gw
from gradwire.cli import main
from gradwire.cli.completion import configurations
from gradwire.lab.configuration import parse, parse_all
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.jobs.meter import over_rounds
from gradwire.lab.jobs.plan_job import candidate
from gradwire.lab.local import LocalStepsSpec

pytestmark = pytest.mark.usefixtures("forked_ranks")


def test_local_steps_stand_before_the_compressor() -> None:
    alone = parse("localsteps:30")
    assert (alone.local, alone.compressor, alone.memory) == (LocalStepsSpec(30), gw.FP32(), None)
    sparse = parse("LocalSteps:30,lr=1,momentum=0+ChunkTopK:64+Residual:0.95+AllGather@2")
    assert sparse.local == LocalStepsSpec(30, lr=1, momentum=0)
    assert sparse.compressor == gw.ChunkTopK(64)
    assert sparse.memory == gw.Residual(decay=0.95)
    assert sparse.communicator == gw.AllGather()
    assert sparse.every == 30
    assert parse("localsteps:8,fragments=4,delay=2,mix=0.5+quantized:4").local == LocalStepsSpec(8, 0.7, 0.9, 4, 2, 0.5)
    assert parse("topk:0.1").every == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localstep:30", "there is no compressor 'localstep': did you mean localsteps?"),
        ("localsteps:2,fragments=3", "inner_steps=2 are fewer than the 3 fragments"),
        ("localsteps:4,mix=2", "mix=2.0 is no share"),
        ("localsteps:4,lr=0", "are no outer step; use lr=0.7, momentum=0.9"),
        ("localsteps:many", "inner_steps of localsteps takes a whole number, not 'many'"),
        ("localsteps+dense", "write localsteps alone"),
        ("localsteps+residual", "there is no compressor 'residual'"),
        ("localsteps:30+topk:0.1+gravac", "controllers are for exchanges of every step, leave gravac out"),
    ],
)
def test_what_are_no_local_steps_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse(text)
    assert message in str(error.value)


def test_a_plan_has_no_local_steps() -> None:
    with pytest.raises(ValueError, match="is no candidate"):
        candidate("localsteps:30+topk:0.1")


def test_a_training_ends_with_a_round() -> None:
    """Replicas are judged by the parameters that they share, which are those of the last round."""

    def trained(steps: int, *texts: str) -> None:
        recipe = Recipe(steps=steps)
        Comparison(configurations=parse_all(texts), task="digits", options=["width=4"], ranks=2, recipe=recipe)

    trained(40, "dense", "localsteps:20+quantized:4", "localsteps:8")
    trained(60, "localsteps:30,delay=5", "localsteps:30", "dense")
    for steps, text, right in (
        (39, "localsteps:20+quantized:4", 40), (41, "localsteps:20", 60), (300, "localsteps", 500),
        (65, "localsteps:30,delay=5", 90),
    ):  # fmt: skip
        message = f"after {steps} steps the last round of {text} is not over: give --steps {right}"
        with pytest.raises(ValueError, match=re.escape(message)):
            trained(steps, "dense", text)
    with pytest.raises(ValueError, match="give --steps 120"):
        trained(100, "localsteps:40", "localsteps:30,delay=5")


def test_local_steps_are_evaluated_where_a_mean_has_come(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Between, replicas share what they shared before; a mean that is late in the end is waited for."""
    texts = ["dense", "localsteps:8,delay=2", "localsteps:16", "localsteps:16,delay=5"]
    assert main(["train", *texts, "--task", "digits", "--set", "width=4", "--steps", "16", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    names = ("dense", "localsteps-8-delay=2", "localsteps-16", "localsteps-16-delay=5")
    dense, local, prompt, late = ([line for line in records(folder, name) if line["held_out"]] for name in names)
    assert [line["step"] for line in dense] == list(range(2, 17, 2))
    assert [line["step"] for line in local] == [10, 16]
    assert [line["step"] for line in late] == [16]
    assert late[-1]["replicas"] == prompt[-1]["replicas"]
    assert late[-1]["wire_bytes"] == prompt[-1]["wire_bytes"]
    assert "no outer step yet" not in capfd.readouterr().err


def test_the_shell_offers_compressors_after_local_steps() -> None:
    assert configurations("locals") == ["localsteps"]
    assert "localsteps:30+chunktopk" in configurations("localsteps:30+chunk")
    assert configurations("localsteps:30+topk+resid") == ["localsteps:30+topk+residual"]


def test_a_step_of_a_round_is_as_long_as_their_mean() -> None:
    assert over_rounds([1, 1, 4, 2, 2, 2, 8], 3) == [2, 2, 2, 2, 2, 2, 8]


def records(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_rounds_of_one_step_train_as_dense_does(tmp_path: Path) -> None:
    """The mean of what SGD has moved is what SGD moves by the mean gradient."""
    texts = ["dense", "localsteps:1,lr=1,momentum=0", "localsteps:4,lr=1,momentum=0+chunktopk:512+residual:0.95"]
    small = [word for size in ("width=32", "layers=1", "batch=2", "max_bytes=100000") for word in ("--set", size)]
    task = ["--task", "lm", *small, "--optimizer", "sgd"]
    assert main(["train", *texts, *task, "--steps", "12", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    dense, every, sparse = (
        records(folder, name)
        for name in (
            "dense",
            "localsteps-1-lr=1-momentum=0",
            "localsteps-4-lr=1-momentum=0-chunktopk-512-residual-0.95",
        )
    )
    assert [line["loss"] for line in every] == pytest.approx([line["loss"] for line in dense], rel=1e-4)
    of_dense, of_every, of_sparse = (
        [line["held_out"]["loss"] for line in lines if line["held_out"]] for lines in (dense, every, sparse)
    )
    assert of_every == pytest.approx(of_dense, rel=1e-4)
    assert every[-1]["wire_bytes"] == pytest.approx(dense[-1]["wire_bytes"], rel=0.02)
    assert sparse[-1]["dense_bytes"] == dense[-1]["dense_bytes"]
    assert 16 * sparse[-1]["wire_bytes"] < dense[-1]["wire_bytes"]
    first, _, last = of_sparse  # after 4, 8 and 12 steps
    assert last < first
    assert [len(line["step_ms"]) for line in sparse] == [0, 0, 0, 4] * 3


@pytest.mark.long
def test_whole_rounds_are_timed(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    options = ["--model", "tiny-resnet18", "--steps", "4", "--repeats", "1", "--json", str(file)]
    assert main(["bench", "bf16", "localsteps:3+bf16", *options]) == 0
    _, bf16, rounds = json.loads(file.read_text())["timings"]
    assert rounds["steps"] == 6
    assert 3 * rounds["per_step"]["wire_bytes"] == pytest.approx(bf16["per_step"]["wire_bytes"], rel=0.01)
    assert rounds["per_step"]["dense_bytes"] == bf16["per_step"]["dense_bytes"]
