"""Suites of trainings: their rows, and a small one from end to end."""

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.lab.experiments import training_suites
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.experiments.training import Training
from gradwire.lab.experiments.training_suites import training_suite
from gradwire.lab.results import Record, Run, Totals
from gradwire.report.training_suite_report import TrainedTask, table, write

pytestmark = pytest.mark.usefixtures("forked_ranks")


def test_the_small_rows_need_no_data() -> None:
    rows = training_suite("gravac", None)
    assert len(rows) == 3
    for row in rows:
        assert len(row.comparison(2).configurations) == 8
    (lstm,) = training_suite("gravac", None, "lm")
    assert "carry=true" in lstm.options


def test_what_was_fine_tuned_begins_with_weights_by_task() -> None:
    """A suite took no weights: three of ADTopk's trainings began with random ones."""
    begun = {
        row.options[0]: option
        for row in training_suite("adtopk", Path("sets"), weights=Path("w"))
        for option in row.options
        if option.startswith("pretrained=")
    }
    assert begun == {
        "model=published-vit-large": "pretrained=w/images",
        "model=published-bert-large": "pretrained=w/squad",
        "model=published-gpt2-large": "pretrained=w/wikitext",
    }


def test_two_sets_of_one_task_lie_in_folders_of_their_own(tmp_path: Path) -> None:
    """WikiText-2 for the LSTM and WikiText-103 for GPT-2 have the same files."""
    (tmp_path / "lstm-wikitext").mkdir()
    rows = training_suite("adtopk", tmp_path, "wikitext")
    folders = {option for row in rows for option in row.options if option.startswith("folder=")}
    assert folders == {f"folder={tmp_path}/lstm-wikitext", f"folder={tmp_path}/wikitext"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "gravack"], "there is no suite 'gravack': did you mean gravac?"),
        (["--suite", "gravac", "--task", "ptb"], "there is no task of gravac named 'ptb'"),
        (["topk", "--suite", "gravac"], "suite gravac has configurations and options of its own"),
        (["--suite", "gravac", "--data", "nowhere", "--task", "cifar100"], "no file nowhere/cifar100/train.bin"),
        (["--suite", "gravac", "--pretrained", "w"], "none of these trainings of gravac begins with trained weights"),
        (["--suite", "cupcake"], "suite cupcake trains on data that you have: give --data"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err


def run(configuration: str, metrics: list[float], key: str) -> Run:
    totals = Totals(1e6, 1e7, None, 0, 0, 0, 0)
    held_out = [{key: metric} for metric in metrics]
    return Run(configuration, [Record(i, float(i), 0, totals, held_out=own) for i, own in enumerate(held_out, 1)])


@pytest.mark.parametrize(
    ("metric", "dense", "other", "expected"),
    [
        ("accuracy", [0.5, 0.8, 0.9], [0.7, 0.896, 0.7], 2),
        ("loss", [3, 2, 1], [3, 1.009, 2], 2),
        ("loss", [1], [2], None),
        ("loss", [-1, -2], [-1, -1.99], 2),
    ],
)
def test_the_time_to_the_metric_of_dense(metric: str, dense, other, expected) -> None:
    trained = TrainedTask("digits", "cnn", metric, [run("dense", dense, metric), run("topk:0.01", other, metric)])
    assert trained.rows()[1]["seconds_to_dense"] == expected
    assert trained.rows()[1]["elements_factor"] == 100
    assert table("gravac", [trained]).rows[1][-3:] == ["100×", "1.00", "10.0×"]
    assert (table("gravac", [trained]).rows[1][4] == "never") == (expected is None)


@pytest.mark.parametrize(("metric", "ended"), [("accuracy", 0.1), ("perplexity", inf)])
def test_nothing_is_as_good_as_a_dense_run_that_diverged(metric: str, ended: float, tmp_path: Path) -> None:
    """With weights that are NaN accuracy is that of chance, which the others had reached at once."""
    runs = [run("dense", [0.05, ended], metric), run("topk:0.01", [0.3, 0.9], metric)]
    runs[0].records[-1] = replace(runs[0].last, loss=nan)
    trained = TrainedTask("digits", "cnn", metric, runs)
    assert [row["seconds_to_dense"] for row in trained.rows()] == [None, None]
    assert [row[4] for row in table("gravac", [trained]).rows] == ["-", "-"]
    page, _ = write(tmp_path, "gravac", [trained], {})
    assert "digits: dense diverged: there is nothing to compare with." in page.read_text()


@pytest.mark.long
def test_a_small_suite_runs_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(steps=6, schedule="drop:3")
    row = Training(task="digits", options=("width=4",), recipe=recipe, configurations=("dense", "topk:0.1"))
    monkeypatch.setattr(training_suites, "_small_gravac", lambda: [row])
    assert main(["train", "--suite", "gravac", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {"1-digits", "report.html", "suite.json"}
    dense, topk = json.loads((folder / "suite.json").read_text())["rows"]
    assert dense["seconds_to_dense"] <= dense["seconds"]
    assert topk["elements_factor"] == 10
    assert topk["wire_bytes"] < dense["wire_bytes"] / 3
    assert "Suite gravac" in capsys.readouterr().out
