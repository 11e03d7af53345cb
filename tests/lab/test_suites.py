"""Suites: what the four systems ran as rows, groups as configurations say them, and what a suite writes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gradwire as gw
from gradwire.cli import main
from gradwire.lab.configuration import parse
from gradwire.lab.experiments import bench_setup
from gradwire.lab.experiments.bench_setup import Setup, TimingOptions
from gradwire.lab.experiments.suites import SUITES, Overrides, SuiteRow, suite
from gradwire.lab.jobs.bench_job import TimedSteps
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.launch.runner import _Launcher
from gradwire.lab.results import Totals
from gradwire.plans import Plan, uniform
from gradwire.report import suite_report as report
from gradwire.report.timing import summarize
from gradwire.slots import Slot
from tests.support.ranks import ended_ranks, run_ranks

pytestmark = pytest.mark.usefixtures("forked_ranks")

TIMING_OPTIONS = TimingOptions(steps=2, repeats=1)
SIZES = [(100, 100), (10, 10), (300, 100), (20, 20), (100,), (50, 100)]
SLOTS = [Slot.of(f"p{index}", torch.empty(shape)) for index, shape in enumerate(SIZES)]


def regrouped(text: str) -> Plan:
    configuration = parse(text)
    assert configuration.compressor
    assert configuration.grouping
    plan = uniform(SLOTS, configuration.compressor)
    return configuration.grouping.regroup(plan, SLOTS, configuration.compressor)


# groups


def test_a_number_cuts_groups_of_equally_many_tensors() -> None:
    plan = regrouped("topk:0.01@2")
    assert [group.slots for group in plan.groups] == [("p0", "p1"), ("p2", "p3", "p5"), ("p4",)]
    assert plan.groups[-1].compressor == gw.FP32()
    assert len(regrouped("topk:0.01@9").groups) == 6


def test_megabytes_are_the_most_that_a_group_holds() -> None:
    assert [group.slots for group in regrouped("topk:0.01@0mb").groups][:-1] == [(f"p{i}",) for i in (0, 1, 2, 3, 5)]
    assert [group.slots for group in regrouped("topk:0.01@0.04mb").groups][:-1] == [
        ("p0", "p1"), ("p2",), ("p3", "p5"),
    ]  # fmt: skip
    assert [group.slots for group in regrouped("topk:0.01@25mb").groups] == [("p0", "p1", "p2", "p3", "p5"), ("p4",)]
    for text in ("topk:0.01@2", "topk:0.01@0mb", "topk:0.01@hybrid"):
        regrouped(text).check(SLOTS)


def test_dense_groups_are_buckets_of_ddp() -> None:
    assert parse("dense@100mb").bucket_mb == 100
    assert parse("dense").bucket_mb is None
    assert parse("topk@100mb").bucket_mb is None


def test_hybrid_sends_small_matrices_dense_within_the_budget() -> None:
    sparse, dense = regrouped("topk:0.02@hybrid").groups
    kept = 0.02 * (10_000 + 100 + 30_000 + 400 + 5_000)
    assert set(dense.slots) == {"p1", "p3", "p4"}
    assert isinstance(dense.communicator, gw.AllReduce)
    assert isinstance(sparse.communicator, gw.AllGather)
    assert isinstance(sparse.compressor, gw.TopK)
    assert sparse.compressor.ratio * 45_000 + 500 == pytest.approx(kept)


def test_hybrid_reaches_into_interleaved_compressors() -> None:
    (sparse, _) = regrouped("interleaved@hybrid").groups
    assert isinstance(sparse.compressor, gw.Interleaved)
    first, second = sparse.compressor.first, sparse.compressor.second
    assert isinstance(second, gw.TopK)
    assert first.ratio == second.ratio < 0.01


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk@many", "@many is no grouping: write @25mb"),
        ("topk@0", "@0 is no grouping: write @0mb"),
        ("nocomm@4", "only dense and compressors have groups"),
        ("dense@4", "those of dense in MB"),
        ("dense@hybrid", "those of dense in MB"),
        ("efsignsgd@hybrid", "EFSignSGD has no ratio, so no budget"),
    ],
)
def test_what_is_no_grouping_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


# rows


@pytest.mark.parametrize("name", SUITES)
def test_every_row_can_be_run(name: str) -> None:
    for row in SUITES[name]:
        assert not parse(row.configuration).silent
        row.setup.task()
        assert row.note == ""


def test_cuts_are_told_and_rows_that_became_alike_are_one() -> None:
    rows = suite("acpsgd", Overrides(model="resnet152", ranks=2, link="100mbit", batch=4, layers=6))
    assert [row.configuration for row in rows] == ["dense", "torch-powersgd:4", "powersgd:4", "acpsgd:4"]
    assert rows[0].note == "6 of 50 layers, ranks 2 for 32, batch 4 for 32, link 100mbit for 10gbit"
    assert "6 of 50 layers" in str(rows[0].setup)
    few = suite("gravac", Overrides(layers=1))
    assert {(row.setup.model, row.setup.layers) for row in few} == {("resnet101", 4), ("vgg16", 5), ("lstm", 1)}
    assert all(row.note == "" for row in suite("gravac", Overrides(layers=99)))


def test_the_command_of_a_row_is_that_row() -> None:
    setup = Setup(model="bert-base", ranks=4, link="1gbit", layers=2, batch=3, size=16)
    assert setup.command("acpsgd:4@25mb", TIMING_OPTIONS) == (
        "gradwire bench acpsgd:4@25mb --model bert-base --hosts 4 --link 1gbit --layers 2 --batch 3 --size 16"
        " --steps 2 --repeats 1 --seed 0 --device cpu"
    )
    sharded = Setup(model="lstm", ranks=8, shard=2).command("bf16", TIMING_OPTIONS)
    assert "--hosts 4 --link loopback --shard 2" in sharded
    spec = setup.spec(["acpsgd:4@25mb"], TIMING_OPTIONS)
    assert spec.configurations == ["nocomm", "acpsgd:4@25mb"]
    assert (spec.task, spec.options) == ("published", ["model=bert-base", "layers=2", "batch=3", "size=16"])


@pytest.mark.parametrize(
    ("per_host", "started"),
    [
        (8, "--nproc-per-node 8"),
        (2, "--nnodes 4 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint gpu07:29500"),
    ],
)
def test_the_command_of_a_row_starts_the_ranks_of_each_host(
    per_host: int, started: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for all of them on one host."""
    told = {"RANK": 0, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": per_host, "MASTER_ADDR": "gpu07", "MASTER_PORT": 29500}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))
    command = Setup(model="lstm", ranks=8, link="real").command("bf16", TIMING_OPTIONS)
    assert command.startswith(f"torchrun {started} -m gradwire bench bf16 --model lstm --steps 2")


SUITE_ON_RANKS = """
import sys
from gradwire.cli import main
from gradwire.lab.experiments import suites
setup = suites.Setup(model="resnet50", ranks=8, link="25gbit")
suites.SUITES["cupcake"] = suites._rows([setup], ["dense", "bf16"])
sizes = ["--layers", "4", "--batch", "2", "--size", "32", "--steps", "1", "--repeats", "1"]
sys.exit(main(["bench", "--suite", "cupcake", *sizes, *sys.argv[1:]]))
"""


@pytest.mark.long
def test_a_suite_runs_on_ranks_that_were_started_beforehand_over_their_own_network(tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(SUITE_ON_RANKS)
    printed = run_ranks([str(tmp_path / "suite.py"), "--out", str(tmp_path)], 2)
    assert printed.count("2 ranks and their own network stand for the published ones") == 1
    (written,) = tmp_path.glob("*-cupcake/suite.json")
    rows = json.loads(written.read_text())["rows"]
    assert [row["link"] for row in rows] == ["real", "real"]
    assert "ranks 2 for 8" in json.dumps(rows)
    assert "torchrun --nproc-per-node 2 -m gradwire bench bf16" in json.dumps(rows)
    ended = ended_ranks([str(tmp_path / "suite.py"), "--link", "1gbit"], 2)
    assert all("a link can only be emulated for ranks that gradwire starts" in rank.err for rank in ended)


def test_a_model_that_the_machine_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_setup.os, "sysconf", lambda name: 1 << 16)
    setup = Setup(model="lstm", ranks=32)
    said = r"lstm with 66 M parameters on 32 ranks needs over 39 GiB, there are 4 here: take .* or --layers$"
    with pytest.raises(ValueError, match=said):
        setup.cluster("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(Setup, "parameters", lambda setup: 1 << 40)
        with pytest.raises(ValueError, match=r"take fewer ranks$"):
            Setup(model="mine.py:make", ranks=2).cluster("cpu")
    Setup(model="lstm", ranks=2).cluster("cpu")


# what is written


def test_a_suite_writes_a_table_a_picture_and_commands(tmp_path: Path) -> None:
    rows = suite("gravac", Overrides(ranks=2, link="loopback", layers=5, batch=2))
    results = []
    for setup in dict.fromkeys(row.setup for row in rows):
        mine = [row for row in rows if row.setup == setup]
        totals = Totals(2e6, 8e6, None, 0.1, 0.2, 0.3, 0.4)
        names = ["nocomm", *(row.configuration for row in mine)]
        samples = [TimedSteps(name, 0, [20.0 + index, 22.0], totals) for index, name in enumerate(names)]
        results += report.results(mine, summarize(samples), TIMING_OPTIONS)
    paths = report.write(tmp_path / "out", "gravac", results, {"machine": "made up", "link": None})
    assert [path.name for path in paths] == ["suite.png", "report.html"]
    assert all(path.stat().st_size > 10_000 for path in paths)
    page = paths[1].read_text()
    data = json.loads((tmp_path / "out" / "suite.json").read_text())
    assert len(data["rows"]) == len(results) == 39
    for row in data["rows"]:
        assert row["command"] in re.sub("<wbr>|</?span[^>]*>", "", page)
        assert "ranks 2 for 32" in row["cut"]
    table = report.table("gravac", results)
    assert table.rows[0][0] == "resnet101"
    assert table.rows[0][-1] == "5 of 33 layers, ranks 2 for 32, batch 2 for 32, link loopback for 10gbit"


MISTAKES = [
    (["--suite", "gravack"], "there is no suite 'gravack': did you mean gravac?"),
    (["--suite", "gravac", "--model", "bert-base"], "there is no model of gravac named 'bert-base'"),
    (["topk", "--suite", "gravac"], "suite gravac has its own configurations and set-ups: leave CONFIGs out"),
    (["--suite", "acpsgd", "--shard", "2"], "suite acpsgd has its own configurations and set-ups: leave --shard out"),
    (["--suite", "gravac", "--json", "a", "--play", "8@1gbit", "--rule", "*=fp32"], "leave --rule, --json, --play out"),
    (["--suite", "gravac", "--hosts", "2", "--link", "fast"], "'fast' is not a link"),
    (["--suite", "gravac", "--hosts", "2", "--size", "5"], "size=5 does not fit"),
    (["--suite", "gravac", "--layers", "-5"], "layers=-5 cannot be had: give 1 or more"),
    (["--suite", "gravac", "--hosts", "2", "--batch", "0"], "batch must be at least 1"),
    (["--model", "tiny-gpt", "topk", "--layers", "1"], "tiny-gpt has one size only"),
    (["--model", "tiny-bert", "topk"], "did you mean tiny-gpt?"),
    (["--model", "lstm", "topk", "--layers", "3"], "layers=3 cannot be had: there are 1 to 2"),
    ([], "CONFIG is missing"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def two_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    setups = [Setup(model="resnet18", ranks=2, batch=batch, size=32) for batch in (2, 3)]
    monkeypatch.setitem(
        SUITES, "cupcake", [SuiteRow(setup, name, setup) for setup in setups for name in ("dense", "bf16")]
    )


def shot(run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """The output of a suite whose ranks `run` like this, and are shot in the end."""
    two_cells(monkeypatch)
    monkeypatch.setattr(_Launcher, "run", run)
    assert main(["bench", "--suite", "cupcake", "--layers", "4", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "it was shot" in captured.err
    return captured


def test_what_was_timed_before_a_failure_is_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(launcher, job, spec, lines, follow):
        whole = "batch=2" in spec.options
        for name in spec.configurations[: None if whole else 2]:
            follow(TimedSteps(name, 0, [1.0], Totals(2e6, 8e6, None, 0, 0, 0, 0)).to_line())
        if not whole:
            raise RankFailed(0, 1, "it was shot")

    captured = shot(run, tmp_path, monkeypatch, capsys)
    assert "Suite cupcake" in captured.out
    (path,) = tmp_path.glob("*/suite.json")
    found = json.loads(path.read_text())
    assert [(row["batch"], row["configuration"]) for row in found["rows"]] == [(2, "dense"), (2, "bf16"), (3, "dense")]
    assert found["stopped"] == "at 2/2 resnet18"


def test_facts_of_a_suite_are_those_of_all_its_set_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were those of the last one."""

    def run(launcher, job, spec, lines, follow):
        for name in spec.configurations:
            follow(TimedSteps(name, 0, [1.0], Totals(2e6, 8e6, None, 0, 0, 0, 0)).to_line())

    setups = [Setup(model="resnet18", ranks=ranks, batch=2, size=32) for ranks in (2, 4)]
    monkeypatch.setitem(SUITES, "cupcake", [SuiteRow(setup, "dense", setup) for setup in setups])
    monkeypatch.setattr(_Launcher, "run", run)
    told = {"place", "ranks", "hosts"}
    for name, hosts, expected in (("two", [], set()), ("one", ["--hosts", "2"], told)):
        assert main(["bench", "--suite", "cupcake", "--layers", "4", *hosts, "--out", str(tmp_path / name)]) == 0
        (path,) = (tmp_path / name).glob("*/suite.json")
        facts = json.loads(path.read_text())
        assert facts.keys() & told == expected
        assert facts["device"] == "cpu"


def test_a_suite_that_fails_after_nocomm_keeps_nothing_and_names_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(launcher, job, spec, lines, follow):
        follow(TimedSteps("nocomm", 0, [1.0], Totals(2e6, 8e6, None, 0, 0, 0, 0)).to_line())
        raise RankFailed(0, 1, "it was shot")

    captured = shot(run, tmp_path, monkeypatch, capsys)
    assert "cannot be shown" not in captured.err
    assert captured.out == ""
    assert not [*tmp_path.glob("*/*")]


def test_a_folder_that_cannot_be_written_is_known_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_cells(monkeypatch)
    monkeypatch.setattr(_Launcher, "run", lambda *job: pytest.fail("it was timed"))
    (tmp_path / "file").touch()
    assert main(["bench", "--suite", "cupcake", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_small_suite_runs_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = Setup(model="resnet18", ranks=4, batch=2, size=32)
    monkeypatch.setitem(SUITES, "cupcake", [SuiteRow(setup, name, setup) for name in ("dense@1mb", "topk@hybrid")])
    options = ["--hosts", "2", "--layers", "4", "--steps", "1", "--repeats", "1", "--out", str(tmp_path)]
    assert main(["bench", "--suite", "cupcake", *options]) == 0
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {"suite.png", "report.html", "suite.json"}
    dense, topk = json.loads((folder / "suite.json").read_text())["rows"]
    assert dense["parameters"] == topk["parameters"] < 11_689_512
    assert topk["per_step"]["wire_bytes"] < dense["per_step"]["wire_bytes"] / 20
    assert topk["cut"] == "4 of 8 layers, ranks 2 for 4"
    assert "Suite cupcake" in capsys.readouterr().out
