"""A user's model on a cluster of which one rank is played: the command, the call from Python, and curves by hand."""

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import gradwire as gw
from gradwire.cli import main, scheduler_commands
from gradwire.cli.bench_command import seconds_left
from gradwire.lab.built_in_profiles import profile as published
from gradwire.lab.curve import Carried, StepCurve
from gradwire.lab.jobs.bench_job import OF_TURN, BenchSpec, TimedSteps
from gradwire.lab.jobs.timed_model import curve_s
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.launch.runner import _Launcher
from gradwire.lab.network.link import Link
from gradwire.lab.play_spec import PlaySpec
from gradwire.lab.played_cluster import PlayedCluster
from gradwire.lab.results import Totals
from gradwire.report import played_report, simulation_report
from gradwire.report.played_report import PlayedTimes
from gradwire.report.text_table import TextTable
from gradwire.report.timing import summarize
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule import Profile
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.costs import Affine
from gradwire.schedule.simulate import on_cluster
from gradwire.transports.played import SentCollective

pytestmark = pytest.mark.usefixtures("forked_ranks")

ELEMENTS = 64 * 64
GBIT = 1e9 / 8


def make():
    def batches(rank: int, world: int):
        while True:
            yield torch.ones(4, 64)

    return torch.nn.Linear(64, 64, bias=False), batches, lambda model, batch: model(batch).square().mean()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "dense", "--play", ""], "--play is empty: give a value, or leave it out"),
        (["simulate", "resnet50", "--ranks", ""], "--ranks is empty"),
        (["bench", ""], "an argument is empty"),
        (["bench", "dense", "--play", "8@1gbit", "--hosts", "0"], "leave --hosts, --link and --json out"),
        (["bench", "dense", "--play", "8@1gbit", "--jitter", "1.5"], "give 0 to 1, such as 0.05"),
        (["bench", "dense", "--play", "8@1gbit", "--slow-rank", "1e9"], "1 to 1000 times as long, such as 1.2"),
        (
            ["simulate", "resnet50", "--play", "8@1gbit", "--task", "lm", "--svg"],
            "draws nothing: leave --pdf and --svg",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(arguments: list[str], message: str, capsys) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_hosts_of_two_are_played_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played_report, "picture", lambda *shown, **options: Figure())  # which takes most of the time
    options = ["--model", f"{__file__}:make", "--steps", "1", "--repeats", "1", "--out", str(tmp_path)]
    configurations = ["dense", "torch-fp16", "topk:0.1"]
    cluster = ["--play", "8@1gbit", "--gpus-per-host", "2", "--different", "--jitter", "0.05", "--slow-rank", "1.2"]
    cost = ["--training-steps", "1000000"]
    assert main(["bench", *configurations, *cluster, *cost, *options]) == 0
    place = "8 ranks, 4 hosts of 2 with a 1gbit link, of which one is played"
    others = "payloads of other batches, a jitter of 5 %, one rank 1.2 times as slow"
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{place}, {others}" in shown
    assert "hours of 1,000,000" in shown
    (folder,) = tmp_path.iterdir()
    # who computed is said wherever figures are
    computed = f"on this machine's CPU: {place}, {others}"
    for text in (shown, html.unescape((folder / "report.html").read_text()), (folder / "played.json").read_text()):
        assert computed in text
    for text in (shown, (folder / "report.html").read_text()):
        assert "A CPU computed these steps. A GPU takes a small part of that time" in text
    assert {path.name for path in folder.iterdir()} == {"played.png", "report.html", "played.json", "timeline.html"}
    # of the one that Gradwire reduces
    assert 'href="timeline.html"' in (folder / "report.html").read_text()
    panels = re.findall("<h2>([^<]+)<small>", (folder / "timeline.html").read_text())
    assert panels == ["topk:0.1"]
    found = json.loads((folder / "played.json").read_text())
    sent = {sample["configuration"]: sample["curve"]["carried"] for sample in found["samples"]}
    # DDP's buckets around all ranks of the hosts; a selection among one rank of each host
    assert sent["nocomm"] == []
    for name, nbytes in (("dense", 4 * ELEMENTS), ("torch-fp16", 2 * ELEMENTS)):
        assert sent[name] == [{"sent": {"kind": "Sum", "nbytes": nbytes, "nccl": False}, "per_host": 2, "count": 1.0}]
    (gather,) = (each for each in sent["topk:0.1"] if each["sent"]["kind"] == "Gather")
    assert (gather["per_host"], gather["count"]) == (1, 1.0)
    assert gather["sent"]["nbytes"] < 0.2 * 4 * ELEMENTS
    # and step times that grow as links get slower
    for steps in found["step_s"].values():
        for by_link in steps.values():
            assert [*by_link.values()] == sorted(by_link.values(), reverse=True)


def test_a_communicator_of_ones_own_is_shown_as_it_was_played(tmp_path: Path, monkeypatch) -> None:
    """Among 1,024 ranks it kept the 4 broadcasts of 4."""
    monkeypatch.setattr(played_report, "picture", lambda *shown, **options: Figure())
    options = ["--model", f"{__file__}:make", "--steps", "1", "--repeats", "1", "--out", str(tmp_path)]
    assert main(["bench", "dense", "topk:0.1+tests.support.outside:InTurns", "--play", "4@1gbit", *options]) == 0
    (folder,) = tmp_path.iterdir()
    assert {*json.loads((folder / "played.json").read_text())["step_s"]["dense"]} == {"4"}


OTHERS: dict[str, Any] = {"different": True, "jitter": 0.05, "slow_rank": 1.2}


def test_a_cluster_is_played_from_python() -> None:
    there: dict[str, Any] = {"play": "4@10gbit", "gpus_per_host": 2, "inside": "8gbit", "latency_us": 20.0}
    timings = gw.bench(make, [gw.ACPSGD(2), "localsteps:2"], **there, **OTHERS, steps=1, repeats=1)
    assert [timing.configuration for timing in timings] == ["nocomm", "acpsgd:rank=2", "localsteps:2"]
    assert [timing.steps for timing in timings] == [1, 2, 2]  # ACP-SGD sends P and Q in turn
    assert timings[1].totals.wire_bytes > timings[0].totals.wire_bytes == 0


def test_a_plan_is_found_on_a_played_cluster_and_its_prediction_is_checked_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = ["--play", "8@1gbit", "--gpus-per-host", "2", "--different", "--jitter", "0.05", "--slow-rank", "1.2"]
    own = ["--model", f"{__file__}:make", "--out", str(tmp_path)]
    cost = ["--training-steps", "1000"]
    assert main(["plan", *cluster, *own, "--candidates", "bf16", *cost]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "hours of 1,000 dense steps' progress" in shown
    (run,) = tmp_path.iterdir()
    page = (run / "timeline.html").read_text()
    assert "on this machine's CPU" in html.unescape(page)
    assert all("A CPU computed these steps" in text for text in (shown, page))
    profile = Profile.load(run / "profile.json")
    assert (profile.ranks, profile.gpus_per_host, set(profile.local)) == (8, 2, {"sum", "broadcast"})
    # the measured step is that of the rank that ran
    assert "rank 0" in (trace := (run / "trace.json").read_text())
    assert "rank 1" not in trace
    assert main(["simulate", str(run / "plan.json"), *cluster, *own, *cost]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Played steps take" in shown
    assert "on this machine's CPU: 8 ranks" in shown
    assert "hours of 1,000 steps" in shown
    assert "A CPU computed these steps" in shown
    (check,) = tmp_path.glob("*/check.json")
    others = "payloads of other batches, a jitter of 5 %, one rank 1.2 times as slow"
    assert json.loads(check.read_text())["title"].endswith(f"of which one is played, {others}")
    rows = json.loads(check.read_text())["rows"]
    given = [] if gw.Plan.load(run / "plan.json").native else ["given plan"]
    assert [row["way"] for row in rows] == ["no communication", "BF16", "FP32", *given, "best plan"]
    assert all(row["played_ms"] > 0 and row["predicted_ms"] > 0 for row in rows)
    assert gw.Plan.load(check.with_name("best-plan.json")).groups


CLUSTERS = [
    (["--play", "64"], "'64' is no cluster to play: write ranks@link, such as 64@25gbit"),
    (["--play", "many@25gbit"], "write ranks@link"),
    (["--play", "64@fast"], "'fast' is not a link"),
    (["--play", "1@1gbit"], "1 rank cannot exchange anything: give 2 or more"),
    (["--play", "64@1gbit", "--gpus-per-host", "0"], "a host has 1 GPU or more, not 0"),
    (["--play", "8@1gbit", "--gpus-per-host", "8", "--latency-us", "20"], "on one host: leave --latency-us out"),
    (["--play", "8@1gbit", "--inside", "8gbit"], "a host of 1 GPU has no links inside: leave --inside out"),
    (["--play", "12@1gbit", "--gpus-per-host", "8"], "12 ranks do not fill hosts of 8 GPUs"),
    (["--play", "8@1gbit", "--jitter", "-1"], "jitter -1.0 is no share"),
    (["--play", "8@1gbit", "--slow-rank", "0.5"], "1 to 1000 times as long"),
    (["--play", "99999999999@1gbit"], "there is no cluster of 99,999,999,999 ranks: give 1,000,000 or fewer"),
    (
        ["--play", "8@1gbit", "--latency-us", "1e12"],
        "a message cannot take 1e+12 µs beside its bytes: give 0 or more, and at most 10 s",
    ),
]
COMMANDS = (["bench", "dense"], ["plan"], ["simulate", "resnet50"])
MISTAKES = [
    *(([*COMMANDS[i % 3], *options], message) for i, (options, message) in enumerate(CLUSTERS)),
    (
        ["bench", "dense", "--jitter", "0.1"],
        "only a played cluster has --jitter; add one: --play 64@25gbit",
    ),
    (["bench", "dense", "--inside", "8gbit"], "only a played cluster has --inside; add one"),
    (["plan", "--gpus-per-host", "8", "--different"], "has --gpus-per-host, --different; add one"),
    (["plan", "--latency-us", "20"], "only a played cluster has --latency-us; add one"),
    (["bench", "dense", "--play", "8@1gbit", "--hosts", "2"], "leave --hosts, --link and --json out"),
    (["bench", "dense", "--play", "8@1gbit", "--shard", "2"], "leave link and shard out"),
    (["bench", "dense", "--price", "2.5"], "are for clusters that are played: give --play as well"),
    (["bench", "dense", "--play", "8@1gbit", "--price", "2.5"], "give --training-steps as well"),
    (["bench", "dense", "--play", "8@1gbit", "--training-steps", "0"], "give 1 or more --training-steps"),
    (["bench", "dense", "--play", "8@1gbit", "--training-steps", "9", "--price", "-1"], "give 0 or more"),
    *(
        ([*command, "--play", "8@1gbit", "--training-steps", "9", "--price", "2"], "is of an hour of a GPU, but a CPU")
        for command in (["bench", "dense"], ["plan"], ["simulate", "resnet50"])
    ),
    (["plan", "--play", "8@1gbit", "--hosts", "2"], "leave --hosts and --link out"),
    (["plan", "--play", "8@1gbit", "--link", "1gbit"], "leave --hosts and --link out"),
    (["simulate", "resnet50", "--play", "8@1gbit", "--ranks", "8"], "leave --ranks, --link and --every out"),
    (["simulate", "resnet50", "--play", "8@1gbit", "--every", "30"], "leave --ranks, --link and --every out"),
    (["simulate", "resnet50"], "--task, --model, --set, --data, --seed and --device are for --play"),
    (["simulate", "resnet50", "--play", "8@1gbit"], "which the model lacks"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_a_mistake_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--model", f"{__file__}:make"]) != 0
    shown = capsys.readouterr().err.strip().splitlines()
    assert len(shown) == 1
    assert message in shown[0]


def test_a_profile_has_no_other_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "resnet50", "--different"]) != 0
    assert "only a played cluster has --different; add one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "3"], "--seed and --device are for --play"),
        (["--device", "cuda"], "--seed and --device are for --play"),
        (["--gpus-per-host", "0"], "a host has 1 GPU or more, not 0"),
        (["--ranks", "1"], "1 rank cannot exchange anything: give 2 or more"),
    ],
)
def test_what_no_profile_can_be_predicted_with_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "resnet50", *options, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_one_host_is_predicted_from_one_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It wanted --latency-us, which it then refused."""
    inside = {"sum": Affine(), "broadcast": Affine()}
    replace(published("resnet50"), ranks=8, gpus_per_host=8, local=inside).save(tmp_path / "profile.json")
    command = ["simulate", str(tmp_path / "profile.json"), "--link", "1gbit", "--out", str(tmp_path / "runs")]
    assert main([*command, "--ranks", "8", "--gpus-per-host", "8"]) == 0
    (written,) = (tmp_path / "runs").glob("*/simulation.json")
    assert "latency of a message" not in json.loads(written.read_text())
    assert main([*command, "--ranks", "8,16", "--gpus-per-host", "8"]) == 2
    assert "the profile was measured on one host: give --latency-us" in capsys.readouterr().err


def test_from_python_options_are_named_as_python_has_them() -> None:
    with pytest.raises(ValueError, match=r"only a played cluster has latency_us; add one: play='64@25gbit'"):
        gw.bench(make, ["bf16"], latency_us=20.0)
    with pytest.raises(ValueError, match="on one host: leave latency_us out"):
        gw.bench(make, ["bf16"], play="2@1gbit", gpus_per_host=2, latency_us=20.0)


def test_one_rank_needs_no_plan_from_python_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Launcher, "run", lambda *job: pytest.fail("it was started"))
    with pytest.raises(ValueError, match="1 rank sends nothing and needs no plan: give 2 or more hosts"):
        gw.plan(make, hosts=1)


def test_a_predicted_training_has_a_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ["--ranks", "16", "--link", "10gbit", "--gpus-per-host", "8", "--latency-us", "20"]
    assert main(["simulate", "resnet50", *cluster, "--training-steps", "1000", "--out", str(tmp_path)]) == 0
    (report,) = tmp_path.glob("*/report.html")
    # whose GPU it is, and what is saved
    for text in (" ".join(capsys.readouterr().out.split()), report.read_text()):
        assert "V100s in float32, by the figures of Wang et al. (MLSys 2023) and NVIDIA; 8 ranks a host" in text
        assert "Beside FP32, the best plan makes" in text
    # the best plan has no step that makes less progress than a dense one
    assert all(f"hours of 1,000 steps, {way}" in report.read_text() for way in ("FP32", "best plan"))


def test_an_unknown_job_names_those_that_are_built_in(capsys: pytest.CaptureFixture[str]) -> None:
    """It asked "did you mean bert-base?" of bert-large."""
    assert main(["simulate", "bert-lage"]) == 2
    assert "there are resnet50, resnet101, bert-base, bert-large; `gradwire plan` writes" in capsys.readouterr().err


def test_a_profile_of_a_cpu_is_doubted_for_hosts_of_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(published("resnet50"), device="cpu").save(tmp_path / "profile.json")
    command = ["simulate", str(tmp_path / "profile.json"), "--ranks", "16", "--link", "1gbit", "--gpus-per-host", "8"]
    assert main([*command, "--latency-us", "20", "--out", str(tmp_path / "runs")]) == 0
    (report,) = (tmp_path / "runs").glob("*/report.html")
    assert all("A CPU computed these steps" in text for text in (capsys.readouterr().out, report.read_text()))
    assert main([*command, "--training-steps", "9", "--price", "2"]) == 2
    assert "is of an hour of a GPU, but a CPU computes" in capsys.readouterr().err


def test_a_latency_below_a_microsecond_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr(scheduler_commands, "_simulated", lambda *asked: [])
    monkeypatch.setattr(simulation_report, "table", lambda *asked: TextTable("", ["ranks"], []))
    monkeypatch.setattr(
        simulation_report, "write", lambda home, title, outcomes, facts, *more: told.append(facts) or []
    )
    monkeypatch.setattr(simulation_report, "verdict", lambda *asked: "")
    assert main(["simulate", "resnet50", "--latency-us", "0.4", "--out", str(tmp_path)]) == 0
    assert told[0]["latency of a message"] == "0.400 µs"


def test_hosts_and_a_link_or_a_cluster_is_given() -> None:
    measures: tuple[Callable[..., object], ...] = (partial(gw.bench, make, ["bf16"]), partial(gw.plan, make))
    for measure in measures:
        for other in (partial(measure, hosts=2), partial(measure, hosts=0), partial(measure, link="1gbit")):
            with pytest.raises(ValueError, match="says ranks and link: leave hosts and link out"):
                other(play="4@1gbit")


def test_ranks_of_one_host_have_its_links_alone() -> None:
    spec = PlaySpec.read("8@1gbit", gpus_per_host=8, inside="800gbit")
    played = PlayedCluster(spec)
    assert (played.hosts, played.card.bytes_per_s, played.mesh.ranks) == (8, 1e11, 8)
    assert str(spec) == "8 ranks of one host, joined by 800gbit, of which one is played"


@pytest.mark.parametrize("gpus_per_host", [1, 8, 64])
def test_the_played_card_and_the_scheduler_say_the_same_of_a_link(gpus_per_host: int) -> None:
    """Between hosts the headers of TCP over Ethernet are counted, once; inside a host there are none."""
    spec = PlaySpec.read("64@1gbit", gpus_per_host, inside="8gbit" if gpus_per_host > 1 else None)
    played, scheduled = PlayedCluster(spec), on_cluster(published("resnet50"), spec.cluster).collectives
    peers, _, bytes_per_s = spec.cluster.network
    assert bytes_per_s == pytest.approx(8 * GBIT if gpus_per_host == 64 else GBIT * 1448 / 1538)
    for nbytes in (1 << 10, 1 << 28):
        sent = 2 * (peers - 1) * nbytes // peers, (peers - 1) * nbytes
        for kind, name, each in zip(("Sum", "Gather"), ("AllReduce", "AllGather"), sent, strict=True):
            seconds = played.card.seconds(SentCollective(kind, nbytes).ways(peers, peers))
            assert seconds == pytest.approx(float(scheduled[name](np.array([each]))[0]))


NOTHING = Totals(0, 0, None, 0, 0, 0, 0)
DENSE = StepCurve((0.0, 0.05, 0.1), (0.1, 0.1, 0.14), (Carried(SentCollective("Sum", 10_000_000), 1, 2.0),), 8, 0.0)
SPARSE = StepCurve((0.0, 0.05, 0.1), (0.12, 0.12, 0.16), (Carried(SentCollective("Gather", 100_000), 1, 1.0),), 8, 0.02)


def test_a_curve_by_hand() -> None:
    busy_s = 2 * 2 * 7 / 8 * 1e7 / GBIT
    assert DENSE.at(8, 0.0, GBIT) == pytest.approx(0.14 + busy_s - 0.1)  # beyond the last point
    assert DENSE.at(8, 0.0, 4 * GBIT) == pytest.approx(0.1 + 0.04 / 0.05 * (busy_s / 4 - 0.05))
    # a ring of two ranks of each host
    pairs = replace(DENSE, carried=(replace(DENSE.carried[0], per_host=2),))
    assert pairs.at(4, 0.0, GBIT) == pytest.approx(0.14 + busy_s - 0.1)
    # no step is shorter for longer messages
    assert replace(DENSE, step_s=(0.2, 0.1, 0.1)).at(8, 0.0, 4 * GBIT) == pytest.approx(0.2)
    # an all-gather: 31 payloads of others, and 32 in place of 8 are decoded
    assert SPARSE.at(32, 1e-4, GBIT) == pytest.approx(0.12 + 0.02 * 3, abs=0.03)
    assert StepCurve.from_line(json.loads(json.dumps(DENSE.to_line()))) == DENSE


def test_among_fewer_hosts_no_step_is_shorter_than_computing() -> None:
    """Decoding fewer payloads takes less, but what was hidden saves nothing."""
    hidden = replace(SPARSE, step_s=(0.101, 0.102, 0.13), hosts=64, decode_s=0.06)
    alone = replace(DENSE, carried=(), step_s=(0.1, 0.1, 0.1), hosts=64)
    samples = [
        TimedSteps(name, 0, [ms], NOTHING, curve) for name, ms, curve in (("nocomm", 100, alone), ("topk", 101, hidden))
    ]
    times, link = PlayedTimes.of(Cluster(64, 100 * GBIT), samples, "cpu"), Link.parse("100gbit")
    assert times.step_s("topk", 2, link) == pytest.approx(0.1)
    assert times.step_s("topk", 64, link) == pytest.approx(0.101, rel=0.01)


def test_messages_up_a_tree_grow_with_its_depth() -> None:
    """GlobalTopK's: 6 among 64 hosts, 10 among 1,024, 1 among 2."""
    up = StepCurve((0.0, 1.0), (0.1, 1.1), (Carried(SentCollective("SendReceive", 1000), 1, 6.0),), 64, 0.0)
    for hosts, messages in ((2, 1), (64, 6), (1024, 10)):
        assert up.at(hosts, 0.01, 1e12) == pytest.approx(0.1 + 0.01 * messages)


def test_the_winner_is_named_by_link_and_ranks() -> None:
    alone = replace(DENSE, carried=(), step_s=(0.09, 0.09, 0.09))
    samples = [
        TimedSteps(name, 0, [ms], NOTHING, curve)
        for name, ms, curve in (("nocomm", 90.0, alone), ("dense", 340.0, DENSE), ("topk", 125.0, SPARSE))
    ]
    times = PlayedTimes.of(Cluster(8, GBIT), samples, "cpu")
    assert [times.fastest(8, Link.parse(text)) for text in ("10mbit", "1gbit", "100gbit")] == ["topk", "topk", "dense"]
    assert times.fastest(1024, Link.parse("10mbit")) == "dense"
    table = {row[0]: row[1] for row in played_report.winners(times).rows}
    assert table["8"].startswith("topk, from ")
    assert table["8"].endswith(" dense")
    # the verdict is of the steps that were played, as the first table has them
    said = "On 8 ranks at 1gbit, topk has the shortest step: 125 ms, where computing on this machine's CPU takes 90.0"
    assert played_report.verdict(times) == f"{said} and dense 340."
    panels = played_report.picture(times, "title").axes
    assert [label.get_text() for label in panels[0].get_xticklabels()][-3:-1] == ["10", "100"]
    assert [panel.get_title() for panel in panels] == ["2 ranks", "8 ranks", "64 ranks", "1024 ranks"]
    assert all(len(panel.lines) == 3 for panel in panels)


def test_timed_steps_and_curves_are_one() -> None:
    """The verdict named one configuration, the table of other links another: they were made at different times."""
    times = PlayedTimes.of(
        Cluster(8, GBIT),
        [
            TimedSteps(name, 0, [ms], NOTHING, curve)
            for name, ms, curve in (
                ("nocomm", 90.0, replace(DENSE, carried=())),
                ("dense", 115.0, SPARSE),
                ("topk", 190.0, SPARSE),
            )
        ],
        "cuda",
    )
    there = Link.parse("1gbit")
    assert [times.step_s(name, 8, there) for name in ("dense", "topk")] == pytest.approx([0.115, 0.19])
    assert times.fastest(8, there) == "dense"
    assert (
        "GPU takes 90.0 and topk 190. This machine was not quiet: steps of topk that were made apart differ by 3"
        in (played_report.verdict(times))
    )
    # however much faster the machine became, no step is shorter than its messages
    assert DENSE.later(-0.3).at(8, 0.0, GBIT) == pytest.approx(0.28)


def played(*names: str) -> list[TimedSteps]:
    curves = {"nocomm": replace(DENSE, carried=()), "dense": DENSE, "topk": SPARSE}
    return [TimedSteps(name, 0, [90.0 + 10 * index], NOTHING, curves[name]) for index, name in enumerate(names)]


def play(monkeypatch: pytest.MonkeyPatch, samples: list[TimedSteps], error: BaseException | None = None) -> None:
    def run(launcher, job, spec, lines, follow):
        for sample in samples:
            follow(sample.to_line())
        if error:
            raise error

    monkeypatch.setattr(_Launcher, "run", run)


def test_nocomm_is_played_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, played("nocomm"))
    command = ["bench", "nocomm", "--play", "8@1gbit", "--model", f"{__file__}:make", "--out", str(tmp_path)]
    assert main(command) == 0
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {"report.html", "played.json"}
    assert "Only nocomm was timed." in (folder / "report.html").read_text()
    assert "Fastest steps" not in capsys.readouterr().out


def test_a_report_that_fails_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*shown, **options):
        raise ZeroDivisionError("no report")

    play(monkeypatch, played("nocomm", "dense"), RankFailed(0, 1, "it was shot"))
    monkeypatch.setattr(played_report, "write", fail)
    command = ["bench", "dense", "--play", "8@1gbit", "--model", f"{__file__}:make", "--out", str(tmp_path)]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert "it was shot" in err
    assert "what was timed cannot be shown: no report" in err


def test_a_long_run_says_at_once_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(launcher, job, spec, lines, follow):
        follow({OF_TURN: 0.2, "seconds": 300.0})
        for sample in played("nocomm", "dense"):
            follow(sample.to_line())

    monkeypatch.setattr(_Launcher, "run", run)
    monkeypatch.setattr(played_report, "picture", lambda *shown, **options: Figure())
    command = ["bench", "dense", "--play", "8@1gbit", "--model", f"{__file__}:make", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "this takes about 15 minutes, 5 with --repeats 1" in " ".join(capsys.readouterr().err.split())


def test_the_time_that_is_left_knows_slow_configurations() -> None:
    """All turns counted equally long: with one of 50 seconds among short ones it was far too long, then too short."""
    spec = BenchSpec(task="digits", options=[], configurations=["nocomm", "dense", "slow"], steps=1, repeats=2)
    assert seconds_left([], spec) is None
    assert seconds_left([2.0], spec) == 2 + 2 + 2 + 2
    assert seconds_left([2.0, 50.0], spec) == 26 + 2 + 50
    assert seconds_left([2.0, 50.0, 1.0], spec) == 2 + 50
    assert seconds_left([2.0, 50.0, 1.0, 3.0, 60.0], spec) == 0


def test_a_turn_of_local_steps_takes_whole_rounds() -> None:
    """Of 3 steps that fit in 30 seconds at each point, 30 are made in rounds of 30."""
    assert curve_s(1.0, 1, 30.0) == 28
    assert curve_s(1.0, 30, 30.0) == 360
    assert curve_s(100.0, 1, 30.0) == 1200


def test_a_run_that_was_stopped_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its page looked complete."""
    play(monkeypatch, played("nocomm", "dense"), KeyboardInterrupt())
    monkeypatch.setattr(played_report, "picture", lambda *shown, **options: Figure())
    command = ["bench", "dense", "topk", "--play", "8@1gbit", "--model", f"{__file__}:make", "--repeats", "2"]
    main([*command, "--out", str(tmp_path)])
    (folder,) = tmp_path.iterdir()
    files = [folder / name for name in ("report.html", "played.json")]
    for text in (" ".join(capsys.readouterr().out.split()), *(file.read_text() for file in files)):
        assert "stopped after 2 of 6 turns, without topk" in text


def test_a_run_that_was_stopped_before_anything_was_timed_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, [], KeyboardInterrupt())
    main(["bench", "dense", "--play", "8@1gbit", "--model", f"{__file__}:make", "--out", str(tmp_path)])
    assert "stopped; nothing was measured yet" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_a_single_host_has_no_link_to_be_fast_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, played("nocomm", "dense", "topk"))
    monkeypatch.setattr(played_report, "picture", lambda *shown, **options: Figure())
    cluster = ["--play", "8@100mbit", "--gpus-per-host", "8"]
    assert main(["bench", "dense", "topk", *cluster, "--model", f"{__file__}:make", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    shown, page = capsys.readouterr().out, (folder / "report.html").read_text()
    assert "On 8 ranks inside a host, dense has the shortest step" in page
    for text in (shown, page):
        assert "One step" in text
        assert "Fastest steps" not in text
        assert "100mbit" not in text.replace(" ".join(cluster), "")


def test_bytes_of_hosts_of_several_gpus_are_those_of_a_host() -> None:
    timings = summarize(played("nocomm", "dense"))
    for gpus_per_host, heading in ((1, "kB per rank"), (2, "kB per host"), (8, "kB per rank")):
        assert heading in played_report.steps(timings, Cluster(8, GBIT, gpus_per_host)).columns


def test_a_training_costs_hours_or_money() -> None:
    timings = summarize([TimedSteps(name, 0, [ms], NOTHING) for name, ms in (("nocomm", 36.0), ("dense", 72.0))])
    for price, heading, cells in ((None, "hours", ["1.00", "2.00"]), (2.5, "cost", ["160", "320"])):
        table = played_report.steps(timings, Cluster(64, GBIT, 8), TrainingCost(100_000, price))
        assert table.columns[-1] == f"{heading} of 100,000 steps"
        assert [row[-1] for row in table.rows] == cells
    assert TrainingCost(100_000).at(36.0, 64, efficiency=0.5) == "2.00"
    assert TrainingCost(100_000).at(36.0, 64, efficiency=0.0) == "never"
