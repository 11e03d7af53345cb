"""The command line: configurations as text, mistakes in one line, and small runs from end to end."""

import json
import os
import subprocess
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from socket import create_server, gethostname
from types import SimpleNamespace

import pytest
import torch

import gradwire as gw
from gradwire.cli import bench_command, list_command, main, soak_command, train_command
from gradwire.cli.option_groups import Compared
from gradwire.cli.run_setup import cluster_of, run_folder
from gradwire.cli.wanted import texts
from gradwire.lab import names
from gradwire.lab.catalogue import catalogue
from gradwire.lab.configuration import parse
from gradwire.lab.experiments.presets import SYSTEMS
from gradwire.lab.jobs.bench_job import TimedSteps
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.launch import launch
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.launch.runner import _Launcher
from gradwire.lab.network.network import Network, NetworkUnavailable, _forbidden
from gradwire.lab.results import Totals
from tests.support.ranks import run_ranks
from tests.support.warm import program

pytestmark = pytest.mark.usefixtures("forked_ranks")

REPOSITORY = Path(__file__).parents[2]

GOOD = [
    ("dense", None, None, None),
    ("torch-fp16", None, None, None),
    ("torch-powersgd:4,start=2@25mb", None, None, None),
    ("nocomm", None, None, None),
    ("bf16", gw.BF16(), None, None),
    ("topk:0.01", gw.TopK(0.01), None, None),
    ("TopK:ratio=0.02+Residual+AllGather", gw.TopK(0.02), gw.Residual(), gw.AllGather()),
    ("powersgd:4+residual", gw.PowerSGD(4), gw.Residual(), None),
    ("powersgd:4+residual:dtype=bfloat16", gw.PowerSGD(4), gw.Residual(dtype=torch.bfloat16), None),
    ("topk:0.01+residual:dtype=int8", gw.TopK(0.01), gw.Residual(dtype=torch.int8), None),
    ("efsignsgd+scatterreduce+residual:0.9", gw.EFSignSGD(), gw.Residual(0.9), gw.ScatterReduce()),
    ("qsgd:127,block=512", gw.QSGD(127, 512), None, None),
    ("randomk:0.1,rescale=true", gw.RandomK(0.1, rescale=True), None, None),
    ("dgc+dgcmemory:masking=false,clip=none", gw.DGC(), gw.DGCMemory(masking=False), None),
    ("dgc+dgcmemory:clip=2", gw.DGC(), gw.DGCMemory(clip=2.0), None),
    ("alldimensiontopk:0.1,axis=0", gw.AllDimensionTopK(0.1, axis=0), None, None),
    ("sidco:distribution=gamma", gw.SIDCo(distribution="gamma"), None, None),
    ("interleaved:alldimensiontopk/0.1,second=dgc", gw.Interleaved(gw.AllDimensionTopK(0.1), gw.DGC()), None, None),
]

BAD = [
    ("topkk", "there is no compressor 'topkk': did you mean topk?"),
    ("xyz", "there is no compressor 'xyz': there are "),
    ("topk+resid", "there is no memory, communicator or controller 'resid': did you mean residual?"),
    ("topk:rato=0.1", "there is no option of topk named 'rato': did you mean ratio?"),
    ("topk:much", "ratio of topk takes a number, not 'much'"),
    ("powersgd:2.5", "rank=2.5 is neither a number of rows nor a ratio to the shorter side"),
    ("randomk:rescale=maybe", "rescale of randomk takes true or false, not 'maybe'"),
    ("topk:0.1,32,7", "topk takes only ratio, value_bits"),
    ("topk:0.1,ratio=0.2", "topk got ratio twice"),
    ("fp32:3", "fp32 takes no options"),
    ("topk:2", "ratio=2.0 is not the share of elements to send"),
    ("topk+allreduce", "pair it with AllGather() or ScatterReduce()"),
    ("signsgd+residual", "SignSGD votes"),
    ("topk+residual+nomemory", "names two memories"),
    ("topk+allgather+allgather", "names two communicators"),
    ("dense+residual", "write dense alone"),
    ("topk:0.1+gravac:max_factor=inf", "GraVAC(max_factor=inf) takes a finite number"),
    ("topk:0.1+cat:max_factor=inf", "CAT(max_factor=inf) takes a finite number"),
    ("torch-fp16+residual", "write torch-fp16 alone"),
    ("localsteps:3+torch-powersgd:4", "write torch-powersgd:4 alone"),
    ("torch-powersgd:4@4", "as in torch-powersgd:4@25mb"),
    ("torch-powersgd:0", "use e.g. torch-powersgd:4"),
    ("auto+residual", "write auto alone"),
    ("topk+gravac@planned", "@planned has a controller of its own"),
    ("localsteps+topk@planned", "@planned has a controller of its own"),
    ("dense@planned", "only dense and compressors have groups"),
    ("torch-fp16@planned", "write torch-fp16 alone"),
    ("torch-powersg:4", "did you mean torch-powersgd?"),
    ("topk;*.norm.*", "'*.norm.*' is no rule: write PATTERN=COMPRESSOR"),
    ("topk;*.norm.*=fp3", "there is no compressor 'fp3': did you mean fp32?"),
    ("topk;numel<>3=fp32", "'numel<>3' cannot be read"),
    ("topk;*=fp32", "two rules are for '*'"),
    ("dense;*.norm.*=fp32", "dense takes no rules"),
    ("topk@planned;*.norm.*=fp32", "topk@planned takes no rules"),
    ("localsteps:3;*.norm.*=auto", "leaves a choice to the automatic plan"),
    ("topk@25mb;*.norm.*=auto", "leaves a choice to the automatic plan"),
]


@pytest.mark.parametrize(("text", "compressor", "memory", "communicator"), GOOD)
def test_configurations_are_read(text, compressor, memory, communicator) -> None:
    configuration = parse(text)
    assert configuration.compressor == compressor
    assert configuration.memory == memory
    assert configuration.communicator == communicator
    assert configuration.silent == (text == "nocomm")


def test_rules_follow_a_configuration_and_keep_their_patterns() -> None:
    read = parse("TopK:0.01+residual@25mb;*.Norm.*=FP32;dim<2&numel>9=quantized:4+nomemory")
    assert read.text == "topk:0.01+residual@25mb;*.Norm.*=FP32;dim<2&numel>9=quantized:4+nomemory"
    assert read.rules == (("*.Norm.*", "FP32"), ("dim<2&numel>9", "quantized:4+nomemory"))
    assert (read.compressor, read.controller) == (gw.TopK(0.01), None)
    for text in ("auto;*.norm.*=fp32", "topk:0.01;*.norm.*=bf16|fp32"):
        chosen = parse(text)
        assert isinstance(chosen.controller, gw.Auto)
        assert [rule.pattern for rule in chosen.controller.rules] == ["*.norm.*", "*"]
        assert chosen.rules == (("*.norm.*", gw.FP32()),)


def test_rules_of_the_command_line_are_for_all_that_compresses() -> None:
    configurations = ["dense", "topk@4", "localsteps:3+topk;dim<2=bf16", "torch-fp16"]
    assert texts(Compared(configurations, "gravac", ["*.norm.*=fp32"])) == [
        "dense", "topk+gravac@4;*.norm.*=fp32", "localsteps:3+topk;*.norm.*=fp32;dim<2=bf16", "torch-fp16",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_is_no_configuration_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        parse(text)
    assert message in str(error.value)


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Usage")
    assert len(shown.out.splitlines()) > 10
    assert not shown.err


def test_every_compressor_memory_communicator_and_task_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    for entries in catalogue().values():
        for entry in entries:
            assert entry.summary.endswith(".")
            assert entry.name in listed
    assert main(["list", "compressors"]) == 0
    assert "https://arxiv.org/abs/1905.13727" in capsys.readouterr().out


def test_names_that_are_checked_before_torch_is_loaded_are_those_of_the_catalogue() -> None:
    found = {kind: [entry.name for entry in entries] for kind, entries in catalogue().items()}
    known = {"Tasks": names.TASKS, "Models": names.MODELS, "Presets": names.PRESETS, "Suites": names.SUITES}
    known["Hooks"] = names.HOOKS
    assert {kind: tuple(found[kind]) for kind in known} == known
    assert sorted(SYSTEMS) == sorted(names.SUITES)
    assert tuple(map(str.lower, found)) == names.KINDS
    for kind in ("Compressors", "Memories", "Communicators", "Controllers"):
        assert sorted(found[kind]) == sorted(names.exported_names(kind.lower()))


MISTAKES = [
    (["train", "topkk"], "did you mean topk?"),
    (["train", "topk+allreduce"], "cannot be added by an all-reduce"),
    (["train", "dense", "dense"], "'dense' is given twice"),
    (["train", "nocomm"], "it is for `gradwire bench`"),
    (["train", "dense", "--task", "digit"], "there is no task 'digit': did you mean digits?"),
    (["train", "dense", "--task", "cifar10"], "cifar10 needs folder=FOLDER"),
    (["train", "dense", "--task", "cifar10", "--folder", "/nowhere"], "/nowhere"),
    (["train", "dense", "--data", "/"], "lm takes no --data: name a --task that reads files, such as text or images"),
    (["train", "dense", "--set", "widht=3"], "did you mean width?"),
    (["train", "dense", "--set", "width"], "write name=value"),
    (["train", "dense", "--set", "model=bert"], "there is no model of lm named 'bert'"),
    (["train", "dense", "--task", "digits", "--set", "batch=4000"], "lower batch"),
    (["train", "dense", "--steps", "many"], "'--steps'"),
    (["train", "dense", "--link", "fast"], "'fast' is not a link"),
    (["train", "dense", "--link", "1gbit", "--hosts", "300"], "1 to 254 hosts, not 300"),
    (["train", "dense", "--device", "tpu"], "device is cpu or cuda"),
    (["train", "dense", "--device", "cuda", "--hosts", "99"], "this machine has no GPU"),
    (["train"], "CONFIG"),
    (["train", "dense", "--frobnicate"], "--frobnicate"),
    (["bench", "dense", "--model", "gpt"], "there is no model 'gpt': did you mean gpt2?"),
    (["bench", "dense", "--model", "nosuch"], "lstm, tiny-vgg16, tiny-resnet18, tiny-lstm, tiny-gpt, my.module:make"),
    (
        ["bench", "dense", "--model", "mine.py"],
        "'mine.py' is no model: one of your own is a function in it, mine.py:make",
    ),
    (["bench", "torch-fp16", "--shard", "2"], "torch-fp16 is a hook of torch's DDP, and --shard takes FSDP2"),
    (["train", "torch-fp16", "--shard", "2"], "torch-fp16 is a hook of torch's DDP, and --shard takes FSDP2"),
    (["train", "torch-powersgd", "--checkpoint-every", "5"], "torch-powersgd has state that no checkpoint"),
    (["train", "torch-fp16", "--controller", "gravac"], "has no CONFIG that compresses"),
    (["bench", "dense", "--rule", "*.norm.*=fp32"], "--rule *.norm.*=fp32 has no CONFIG that compresses"),
    (["train", "--resume", "runs/x", "--rule", "*=fp32"], "give nothing else"),
    (["train", "dense", "--autocast", "fp8"], "there is no autocast to 'fp8': there are bf16, fp16"),
    (["bench", "dense", "--autocast", "half"], "there is no autocast to 'half': there are bf16, fp16"),
    (["bench", "localsteps:3", "--autocast", "fp16"], "which float16's overflows would skip on one of them: bf16"),
    (["bench", "dense", "--json", "/nowhere/a.json"], "there is no folder /nowhere"),
    (["bench", "dense", "--json", "/"], "/ is a folder"),
    (["train", "dense", "--controller", "gravac"], "--controller gravac has no CONFIG that compresses"),
    (["bench", "topk", "--controller", "nope"], "there is no controller 'nope'"),
    (["simulate", "gpt2"], "no file named 'gpt2', nor a built-in job: there are resnet50, resnet101, bert-base"),
    (["train", "--resume", "runs/x", "--controller", "gravac"], "give nothing else"),
    (["list", "topkk"], "there is nothing named 'topkk': did you mean topk?"),
    (["fly"], "fly"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_get_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("gradwire: ")
    assert err.count("\n") == 1


def test_a_library_that_is_none_is_named_by_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> str:
        raise ValueError("GRADWIRE_KERNELS=/nope is no file")

    monkeypatch.setattr(list_command, "in_use", refused)
    assert main(["list"]) == 2
    assert tuple(capsys.readouterr()) == ("", "gradwire: GRADWIRE_KERNELS=/nope is no file\n")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["train", "dense", "--task", "digits", "--link", "1gbit"], ", or give --link loopback"),
        (["bench", "--suite", "acpsgd", "--hosts", "2", "--layers", "1", "--batch", "1"], ", or give --link loopback"),
        (["doctor", "--link", "1gbit"], ", or give --link loopback"),
        (["doctor", "--hosts=2", "--link", "1gbit"], ", or give --link loopback and leave --hosts out"),
    ],
)
def test_a_link_that_may_not_be_made_is_a_mistake(
    arguments: list[str],
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A suite has links of its own: there is none to leave out."""

    def refuse(network: Network) -> Network:
        raise NetworkUnavailable("no emulated network: Operation not permitted")

    monkeypatch.setattr(Network, "__enter__", refuse)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert f"gradwire: no emulated network: Operation not permitted{advice}\n" in capsys.readouterr().err


def test_a_run_that_goes_on_is_advised_no_other_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resume(*given: object) -> None:
        raise NetworkUnavailable("no emulated network: Operation not permitted")

    monkeypatch.setattr(train_command, "resume", resume)
    assert main(["train", "--resume", "runs/x"]) == 2
    assert capsys.readouterr().err == "gradwire: no emulated network: Operation not permitted\n"


def test_a_demo_without_links_goes_on_and_names_no_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no --link to leave out."""

    def answer(network: Network, *question: object) -> None:
        raise NetworkUnavailable(f"no emulated network: Operation not permitted; {_forbidden()}")

    monkeypatch.setattr(Network, "_ask", answer)
    assert train_command._demo_cluster() == LabCluster(4)
    said = capsys.readouterr().out
    assert "; so this goes over loopback" in said
    assert "--link" not in said


def test_a_started_rank_takes_no_link(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _started(monkeypatch, RANK="0", WORLD_SIZE="2")
    assert main(["train", "dense", "--link", "1gbit"]) == 2
    assert "start it by itself" in capsys.readouterr().err


def _started(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", **variables}.items():
        monkeypatch.setenv(name, value)


STARTED = [
    (["bench", "dense"], {}, "MASTER_ADDR"),
    (["train", "dense", "--hosts", "2"], {"MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT"),
    (["plan"], {"MASTER_PORT": "29500"}, "MASTER_ADDR"),
    (["plan", "--play", "8@1gbit"], {"WORLD_SIZE": "1"}, "MASTER_ADDR"),
    (["bench", "--suite", "acpsgd"], {}, "MASTER_ADDR"),
    (["doctor"], {}, "MASTER_ADDR"),
    (["bench", "dense"], {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "2"}, "RANK=2 is none of 2"),
    (["doctor"], {"WORLD_SIZE": "two"}, "WORLD_SIZE='two' is no number"),
]


@pytest.mark.parametrize(("arguments", "variables", "named"), STARTED)
def test_ranks_that_cannot_find_each_other_are_a_mistake(
    arguments: list[str],
    variables: dict[str, str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was a traceback of torch's."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gradwire: {named}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["bench", "train"])
def test_a_store_that_cannot_be_reached_is_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        _started(monkeypatch, RANK="0", WORLD_SIZE="2", MASTER_PORT=port)
        assert main([command, "dense"]) == 1
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "gradwire:" in line]
    assert f"rank 0 (host {gethostname()}) cannot reach the store at 127.0.0.1:{port}: " in said
    assert said.endswith("give all ranks one MASTER_ADDR, and a MASTER_PORT that is free")


def test_started_ranks_neither_soak_nor_all_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them did."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(soak_command, "soaking", lambda *job: pytest.fail("it began"))
    assert main(["soak", "--out", str(tmp_path)]) == 2
    assert "a soak starts ranks of its own: start it by itself" in capsys.readouterr().err
    assert main(["simulate", "resnet50", "--ranks", "8", "--link", "1gbit", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")
    assert not [*tmp_path.iterdir()]


def test_loopback_is_a_place() -> None:
    assert cluster_of(3, "loopback", "cpu") == cluster_of(3, None, "cpu") == LabCluster(3)


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(datetime):
        now = classmethod(lambda cls: cls(2026, 2, 1))

    monkeypatch.setattr("gradwire.cli.run_setup.datetime", Stopped)
    names = [run_folder(tmp_path / "runs", "lm").name for _ in range(3)]
    assert names == ["20260201-000000-lm", "20260201-000000-lm-2", "20260201-000000-lm-3"]
    assert all((tmp_path / "runs" / name).is_dir() for name in names)
    _started(monkeypatch, RANK="1", WORLD_SIZE="2")
    assert not run_folder(tmp_path / "others", "lm").exists()


def test_training_two_configurations_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--task", "digits", "--set", "width=4", "--steps", "12", "--out", str(tmp_path)]
    assert main(["train", "dense", "topk:0.1+residual", *options]) == 0
    (run,) = tmp_path.iterdir()
    assert {path.name for path in run.iterdir()} == {
        "curves.png", "costs.png", "report.html", "run.json", "dense", "topk-0.1-residual",
    }  # fmt: skip
    for name in ("dense", "topk-0.1-residual"):
        records = [json.loads(line) for line in (run / name / "metrics.jsonl").read_text().splitlines()]
        assert [record["step"] for record in records] == list(range(1, 13))
        assert len(records[-1]["replicas"]) == 64
        assert set(records[-1]["held_out"]) == {"loss", "accuracy", "top5"}
        assert any(path.name.startswith("events.out.tfevents") for path in (run / name).iterdir())
    assert 3 * records[-1]["wire_bytes"] < records[-1]["dense_bytes"]
    assert records[-1]["interface_bytes"] is None
    assert json.loads((run / "run.json").read_text())["options"]["width"] == "4"
    out = capsys.readouterr().out
    assert "topk:0.1+residual" in out
    assert str(run / "report.html") in out


@pytest.mark.long
def test_what_was_trained_before_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = train_command._train

    def train(configuration, *rest):
        if configuration.text == "dense":
            return real(configuration, *rest)
        raise RankFailed(0, 1, "it was shot")

    monkeypatch.setattr(train_command, "_train", train)
    options = ["--task", "digits", "--set", "width=4", "--steps", "3", "--out", str(tmp_path)]
    assert main(["train", "dense", "topk:0.1", *options]) == 1
    captured = capsys.readouterr()
    assert "it was shot" in captured.err
    assert "dense" in captured.out
    assert list(tmp_path.glob("*/report.html"))


def test_what_was_timed_before_a_failure_is_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(launcher, job, spec, lines, follow):
        for name in spec.configurations[:2]:
            follow(TimedSteps(name, 0, [1.0], Totals(2e6, 8e6, None, 0, 0, 0, 0)).to_line())
        raise RankFailed(0, 1, "it was shot")

    monkeypatch.setattr(_Launcher, "run", run)
    options = ["--model", "tiny-resnet18", "--json", str(tmp_path / "bench.json")]
    assert main(["bench", "bf16", "topk:0.1", *options]) == 1
    captured = capsys.readouterr()
    assert "it was shot" in captured.err
    assert "bf16" in captured.out
    timings = json.loads((tmp_path / "bench.json").read_text())["timings"]
    assert [timing["configuration"] for timing in timings] == ["nocomm", "bf16"]


@pytest.mark.parametrize("there", [False, True])
def test_a_file_is_looked_at_before_the_work_and_left_alone(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that could not be written was noticed when all was measured."""
    monkeypatch.setattr(bench_command, "time_turns", lambda *job: None)
    options = ["--model", "tiny-resnet18", "--json"]
    assert main(["bench", "dense", *options, "/proc/self/bench.json"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gradwire: ")
    assert err.count("\n") == 1
    if there:
        (tmp_path / "bench.json").write_text("{}")
    assert main(["bench", "dense", *options, str(tmp_path / "bench.json")]) == 0
    assert [path.read_text() for path in tmp_path.iterdir()] == ["{}"] * there


def test_a_file_is_of_the_host_that_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank on a host without that folder ended, and rank 0 waited for it."""
    timed: list[object] = []
    _started(monkeypatch, RANK="1", WORLD_SIZE="2")
    monkeypatch.setattr(bench_command, "runner", lambda cluster: nullcontext(SimpleNamespace(led=nullcontext)))
    monkeypatch.setattr(bench_command, "time_turns", lambda *job: timed.append(job))
    assert main(["bench", "dense", "--model", "tiny-resnet18", "--json", "/nowhere/a.json"]) == 0
    assert len(timed) == 1


def test_a_folder_that_cannot_be_written_is_told_in_one_line_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["simulate", "resnet50", "--ranks", "8", "--link", "25gbit", "--out", str(tmp_path / "file")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gradwire: ")
    assert err.count("\n") == 1


def test_bench_writes_all_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    options = ["--model", "tiny-resnet18", "--steps", "2", "--repeats", "1", "--json", str(file)]
    assert main(["bench", "bf16", *options]) == 0
    results = json.loads(file.read_text())
    assert [timing["configuration"] for timing in results["timings"]] == ["nocomm", "bf16"]
    nocomm, bf16 = results["timings"]
    assert nocomm["times_nocomm"] == 1
    assert nocomm["per_step"]["wire_bytes"] == 0
    assert 2 * bf16["per_step"]["wire_bytes"] == pytest.approx(bf16["per_step"]["dense_bytes"], rel=0.01)
    assert all(len(sample["step_ms"]) == 2 for sample in results["samples"])
    shown = capsys.readouterr().out.split()
    assert {"nocomm", "bf16"} <= set(shown)
    assert "ms per step; the column wire sums messages that overlap, so it may exceed the step" in " ".join(shown)


def test_the_heading_of_a_bench_says_how_many_steps_were_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of local steps are whole rounds."""

    def run(launcher, job, spec, lines, follow):
        for name in spec.configurations:
            step_ms = [1.0] * (500 if name.startswith("localsteps") else spec.steps)
            follow(TimedSteps(name, 0, step_ms, Totals(2e6, 8e6, None, 0, 0, 0, 0)).to_line())

    monkeypatch.setattr(_Launcher, "run", run)
    assert main(["bench", "dense", "localsteps:500", "--model", "tiny-resnet18"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 ranks over loopback: 3 x 20 steps, of localsteps:500 3 x 500; ms per step" in shown


HELP = {
    "bench": [
        "standard deviation of a rank's computing time, as a share of it: 0.05 is 5 %",
        "microseconds that each message between hosts takes on top of its bytes",
        "also show how many hours so many steps take on the played or simulated cluster",
    ],
    "simulate": ["30: also predict local steps, which send once in 30 steps"],
}


@pytest.mark.parametrize("command", HELP)
def test_options_say_what_their_numbers_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert [words for words in HELP[command] if words not in shown] == []


def make():
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]

    def batches(rank: int, world: int):
        yield torch.ones(2, 64) + rank

    return torch.nn.Sequential(*layers), batches, lambda model, batch: model(batch).square().mean()


@pytest.mark.long
def test_plans_are_chosen_before_they_are_timed(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    options = ["--model", "tests.cli.test_cli:make", "--steps", "1", "--repeats", "2", "--json", str(file)]
    assert main(["bench", "efsignsgd", "efsignsgd@planned", "auto", *options]) == 0
    _, fixed, planned, auto = json.loads(file.read_text())["timings"]
    # by its times, a plan has biases in float32 as the fixed one has, or compresses them too
    assert 0 < planned["per_step"]["wire_bytes"] < 1.05 * fixed["per_step"]["wire_bytes"]
    assert 0 < auto["per_step"]["wire_bytes"] < 1.1 * auto["per_step"]["dense_bytes"]
    assert auto["per_step"]["dense_bytes"] == fixed["per_step"]["dense_bytes"]


@pytest.mark.long
def test_hooks_of_torch_are_timed_with_the_bytes_that_they_send(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    options = ["--model", "tiny-resnet18", "--steps", "1", "--repeats", "1", "--json", str(file)]
    assert main(["bench", "torch-fp16", "torch-bf16", "torch-powersgd:4", "torch-powersgd:4@1mb", *options]) == 0
    _, fp16, bf16, powersgd, bucketed = json.loads(file.read_text())["timings"]
    dense = fp16["per_step"]["dense_bytes"]
    assert fp16["per_step"]["wire_bytes"] == bf16["per_step"]["wire_bytes"] == dense / 2
    assert 0 < powersgd["per_step"]["wire_bytes"] == bucketed["per_step"]["wire_bytes"] < dense / 5


# Both ranks begin with the same model; then rank 1 changes one number.
DIVERGE = """
import torch
from gradwire.lab.configuration import parse
from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.launch.rank_job import meet
with meet("cpu") as peers, MeasuredModel(torch.nn.Linear(2, 2), parse("dense"), peers, 0) as replica:
    replica.hash()
    with torch.no_grad():
        replica.module.bias[peers.rank] += peers.rank
    replica.hash()
"""


def test_replicas_that_differ_are_an_error() -> None:
    with pytest.raises(RankFailed, match="the replicas differ: rank 1 has other parameters than rank 0"):
        launch(["-c", DIVERGE], 2, timeout_s=60)


# Each rank normalizes other numbers; DDP would give rank 1 the statistics of rank 0 before the second pass.
SILENT = """
import torch
from gradwire.lab.configuration import parse
from gradwire.lab.jobs.measured_model import MeasuredModel
from gradwire.lab.launch.rank_job import meet
with meet("cpu") as peers, MeasuredModel(torch.nn.BatchNorm1d(1), parse("nocomm"), peers, 0) as replica:
    for _ in range(2):
        replica.wrapped(torch.full((2, 1), float(peers.rank))).sum().backward()
    assert abs(replica.module.running_mean.item() - 0.19 * peers.rank) < 1e-6
"""


def test_without_communication_buffers_are_not_sent_either() -> None:
    launch(["-c", SILENT], 2, timeout_s=60)


@pytest.mark.long
def test_ranks_that_torchrun_started_are_joined(tmp_path: Path) -> None:
    options = [
        "--task",
        "digits",
        "--set",
        "width=4",
        "--steps",
        "3",
        "--checkpoint-every",
        "2",
        "--out",
        str(tmp_path),
    ]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "gradwire", "train", "topk:0.1", *options]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    with program(*command, env=environment, stdout=subprocess.PIPE, text=True) as torchrun:
        out, _ = torchrun.communicate(timeout=200)
    assert torchrun.returncode == 0
    assert out.count("speed-up") == 1
    (run,) = tmp_path.iterdir()
    assert len((run / "topk-0.1" / "metrics.jsonl").read_text().splitlines()) == 3
    checkpoint = run / "topk-0.1" / "checkpoint-3"
    assert {path.name for path in checkpoint.iterdir()} == {"rank-0.pt", "rank-1.pt", "shared.pt"}


# Two set-ups, and two tasks, on the same ranks.
SUITES = {
    "bench": """
import sys
from gradwire.cli import main
from gradwire.lab.experiments.bench_setup import Setup
from gradwire.lab.experiments.suites import SUITES, SuiteRow
setups = [Setup(model="resnet18", ranks=2, batch=batch, size=32) for batch in (2, 3)]
SUITES["cupcake"] = [SuiteRow(setup, "dense", setup) for setup in setups]
options = ["--layers", "4", "--steps", "1", "--repeats", "1", "--out", sys.argv[1]]
sys.exit(main(["bench", "--suite", "cupcake", *options]))
""",
    "train": """
import sys
from gradwire.cli import main
from gradwire.lab.experiments import training_suites
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.experiments.training import Training
row = Training(task="digits", options=("width=4",), recipe=Recipe(steps=2), configurations=("dense",))
training_suites._small_gravac = lambda: [row, row]
sys.exit(main(["train", "--suite", "gravac", "--out", sys.argv[1]]))
""",
}


@pytest.mark.long
@pytest.mark.parametrize("command", SUITES)
def test_ranks_that_torchrun_started_run_suites(tmp_path: Path, command: str) -> None:
    (tmp_path / "suite.py").write_text(SUITES[command])
    run_ranks([str(tmp_path / "suite.py"), str(tmp_path / "runs")], 2)
    (run,) = (tmp_path / "runs").iterdir()
    assert len(json.loads((run / "suite.json").read_text())["rows"]) == 2
