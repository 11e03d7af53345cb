"""Interrupted trainings: what they go on to is what an uninterrupted one reaches, to the last bit."""

import errno
import json
import os
import signal
import subprocess
import time
from contextlib import chdir, nullcontext, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

import gradwire as gw
from gradwire import atomic_file
from gradwire.cli import main, train_command
from gradwire.lab.configuration import parse_all
from gradwire.lab.experiments import resumable
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.experiments.resumable import FILE, METRICS, alone_in, keep, kept, records_kept
from gradwire.lab.experiments.training import Training
from gradwire.lab.jobs import checkpoints
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.launch import launch
from gradwire.lab.results import Record, Totals, append, read_lines
from gradwire.report.scalars import Scalars
from tests.support.ranks import ended_ranks
from tests.support.small_files import write_ptb
from tests.support.warm import program

pytestmark = pytest.mark.usefixtures("forked_ranks")

CONFIGURATIONS = [
    "dense", "topk:0.1", "qsgd", "acpsgd:2", "powersgd:2+lgreco:interval=4", "randomk:0.1", "dgc:0.1+dgcmemory",
    "interleaved:alldimensiontopk/0.1,topk/0.1", "localsteps:3+topk:0.1", "localsteps:6,fragments=2,mix=0.5",
]  # fmt: skip

# Each training runs as a whole, and again until it is stopped after step 8, and on from its checkpoint of step 5.
SCRIPT = """
import json, os, sys
from pathlib import Path
from gradwire.lab.jobs import train_job as job
from gradwire.lab.launch.rank_job import meet
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.workloads import own

class Stopped(Exception): pass
step = job._Training._step

def run(spec, peers, stop_after=None):
    lines, done = [], []
    own.begin_anew()  # as in a new process
    def counted(training, *batch):
        if len(done) == stop_after:
            raise Stopped
        done.append(batch)
        step(training, *batch)
    job._Training._step = counted
    try:
        job.train(spec, peers, lines.append)
    except Stopped:
        return [line for line in lines if line["step"] <= 5]
    return lines

def told(lines):
    return [[line[name] for name in ("step", "loss", "replicas", "wire_bytes", "held_out")] for line in lines]

folder, trainings = Path(sys.argv[1]), json.loads(sys.argv[2])
outcomes = []
with meet("cpu") as peers:
    for number, (task, options, recipe, text) in enumerate(trainings):
        def spec(kind):
            return job.TrainSpec(task=task, options=options, configuration=text, recipe=Recipe(**recipe),
                home=str(folder / f"{number}-{kind}"), checkpoint_every=5)
        whole = run(spec("whole"), peers)
        cut = run(spec("cut"), peers, stop_after=8) + run(spec("cut"), peers)
        assert run(spec("cut"), peers) == []  # nothing is left to do
        outcomes.append([told(whole), told(cut)])
    if peers.rank == 0:
        (folder / "outcomes.json").write_text(json.dumps(outcomes))
os._exit(0)
"""


def outcomes(folder: Path, ranks: int, configurations: list[str], **recipe: str) -> list:
    """Of an image task with augmentation and a text task with dropout, in turn."""
    images = ["digits", ["width=4", "augment=true"], {"steps": 12, "schedule": "cosine", "clip": 1.0} | recipe]
    lstm = ["model=published-lstm", "width=16", "context=8", "batch=4", "carry=true"]
    text = ["ptb", [f"folder={write_ptb(folder)}", *lstm], {"steps": 12, "optimizer": "adamw", "schedule": "linear"}]
    trainings = [[*task, each] for task, each in zip(cycle([images, text]), configurations, strict=False)]
    launch(["-c", SCRIPT, str(folder), json.dumps(trainings)], ranks, timeout_s=240)
    return list(zip(trainings, json.loads((folder / "outcomes.json").read_text()), strict=True))


@pytest.mark.parametrize(
    ("ranks", "configurations"), [pytest.param(2, CONFIGURATIONS, marks=pytest.mark.long), (4, ["acpsgd:2"])]
)
def test_a_training_goes_on_as_if_nothing_had_happened(tmp_path: Path, ranks: int, configurations: list[str]) -> None:
    for training, (whole, cut) in outcomes(tmp_path, ranks, configurations):
        assert whole == cut, training
        assert len(whole) == 12
        assert whole[-1][2] is not None


# Crops by torch's generator, from which dropout draws too.
OWN = """
import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 14

    def __getitem__(self, number):
        return number + torch.rand(4)

def make():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    generator = torch.Generator()
    batches = lambda rank, world: LOADER
    return model, batches, lambda model, batch: model(batch.mul_(0.9)).square().mean()
"""


LOADERS = {
    "torch's generator": "DataLoader(Noisy(), batch_size=2, shuffle=True)",
    "its own": "DataLoader(Noisy(), batch_size=2, shuffle=True, generator=generator)",
    "of a graph": "(each[:, None] + torch.rand(4, requires_grad=True) for each in torch.randperm(14).split(2))",
    "at once": "(each[:, None] + torch.rand(4) for each in torch.randperm(14).split(2))",
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_a_model_of_ones_own_with_random_data_goes_on_as_if_nothing_had_happened(tmp_path: Path, loader: str) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("LOADER", loader))
    training = ["own", [f"function={tmp_path}/mine.py:make"], {"steps": 12}, "topk:0.1"]
    launch(["-c", SCRIPT, str(tmp_path), json.dumps([training])], 1)
    ((whole, cut),) = json.loads((tmp_path / "outcomes.json").read_text())
    assert len(whole) == 12
    assert whole == cut


def test_a_training_in_float16_learns_and_goes_on_with_its_scale(tmp_path: Path) -> None:
    ((_, (whole, cut)),) = outcomes(tmp_path, 2, ["topk:0.1"], autocast="fp16")
    assert whole == cut
    assert all(loss < 3 for _, loss, *_ in whole)
    scaler = checkpoints.read(tmp_path / "0-whole", 12, checkpoints.SHARED)["scaler"]
    assert 0 < scaler["scale"] <= 65536
    assert scaler["_growth_tracker"] <= 12


def records(run: Path) -> dict[str, list]:
    """What does not depend on the clock, by configuration."""
    lines = {path.parent.name: path.read_text().splitlines() for path in run.glob("*/metrics.jsonl")}
    names = ("step", "loss", "replicas", "wire_bytes", "held_out")
    return {name: [[json.loads(line)[key] for key in names] for line in own] for name, own in lines.items()}


@pytest.mark.long
def test_a_run_that_was_killed_is_resumed_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "topk:0.1", "--task", "digits", "--set", "width=4", "--steps", "60", "--clip", "1"]
    command += ["--checkpoint-every", "15"]
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    with program(
        "-m", "gradwire", *command, "--out", str(tmp_path / "cut"),
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as cut:  # fmt: skip
        while not list((tmp_path / "cut").glob("*/topk-0.1/checkpoint-*/shared.pt")):
            assert cut.poll() is None
            time.sleep(0.01)
        os.killpg(cut.pid, signal.SIGKILL)
    (whole,), (begun,) = (tmp_path / "whole").iterdir(), (tmp_path / "cut").iterdir()
    assert not (begun / "report.html").exists()
    capsys.readouterr()
    assert main(["train", "--resume", str(begun)]) == 0
    assert "topk:0.1" in capsys.readouterr().out
    assert records(begun) == records(whole)
    assert (begun / "report.html").exists()
    assert [path.name for path in begun.glob("*/checkpoint-*")] == ["checkpoint-60"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "{}"], "a run that can be resumed was started with --checkpoint-every"),
        (["dense", "--resume", "{}"], "goes on with what was begun there: give nothing else"),
        (["--resume", "{}", "--steps", "3"], "give nothing else"),
        (["--resume", "{}", "--seed", "3"], "give nothing else"),
        (["--resume", "{}", "--checkpoint-every", "0"], "give nothing else"),
        (["dense", "--checkpoint-every", "0"], "checkpoint_every=0 is no number of steps or epochs"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *(argument.format(tmp_path) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


def compared(*texts: str, **recipe: Any) -> Comparison:
    options, recipe = ["width=4"], {"recipe": Recipe(steps=2, **recipe)}
    return Comparison(configurations=parse_all(texts), task="digits", options=options, ranks=2, **recipe)


@pytest.mark.parametrize(
    "text",
    ["dgc:0.1+dgcmemory", "dion:0.5", "signum", "bf16;dim>1=dgc:0.1+dgcmemory", "plan:plan.json"],
)
def test_momentum_that_the_optimizer_would_count_twice_is_refused(text: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [name for name, _ in compared("dense").make_task().build_model(0).named_parameters()]
    gw.Plan((gw.Group(tuple(names), gw.DGC(0.1), gw.DGCMemory(), gw.AllGather()),)).save("plan.json")
    for optimizer in ("sgd", "adamw"):
        with pytest.raises(ValueError, match=f"sends momentum, which {optimizer}'s own would count twice: train it by"):
            compared("dense", text, optimizer=optimizer)
    compared(text, optimizer="sgd", momentum=0)
    compared("localsteps:2+dgc:0.1+dgcmemory")


def test_configurations_never_share_a_folder(tmp_path: Path) -> None:
    texts = ["dense", "topk:0.01;numel<4096=bf16", "topk:0.01;numel>4096=bf16"]
    homes = [Path(spec.home).name for _, spec in compared(*texts).specs(tmp_path)]
    assert homes == ["dense", "2-topk-0.01-numel-4096=bf16", "3-topk-0.01-numel-4096=bf16"]


def test_a_long_configuration_has_a_folder_that_can_be_made(tmp_path: Path) -> None:
    rules = "".join(f";layer{number}.*=topk:0.01" for number in range(40))
    texts = [f"topk:0.1{rules}", f"topk:0.1{rules};last=bf16"]
    homes = [Path(spec.home) for _, spec in compared(*texts).specs(tmp_path)]
    for home in homes:
        home.mkdir()
    assert len({home.name for home in homes}) == 2
    assert homes == [Path(spec.home) for _, spec in compared(*texts).specs(tmp_path)]


def test_what_a_run_is_resumed_by_is_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run that was killed while it wrote that again could not be resumed."""

    def killed(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            keep(tmp_path, compared("dense"), LabCluster(2))
    assert not (tmp_path / FILE).exists()
    keep(tmp_path, compared("dense"), LabCluster(2))
    written = (tmp_path / FILE).stat()
    keep(tmp_path, compared("dense"), LabCluster(2))
    assert (tmp_path / FILE).stat() == written


def test_a_run_that_trains_is_not_resumed_beside_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both wrote their records into one file, and both reports had all of them."""
    keep(tmp_path, replace(compared("dense"), checkpoint_every=1), LabCluster(2))
    with alone_in(tmp_path):
        assert main(["train", "--resume", str(tmp_path)]) == 1
    assert f"another process trains in {tmp_path}: wait until it ends, or end it" in capsys.readouterr().err
    with alone_in(tmp_path):
        pass


@pytest.mark.parametrize(("code", "goes_on"), [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)])
def test_only_a_file_system_without_locks_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, goes_on: bool
) -> None:
    keep(tmp_path, compared("dense"), LabCluster(2))

    def refuse(file: object, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(resumable, "flock", refuse)
    with nullcontext() if goes_on else pytest.raises(OSError, match="Input/output error"), alone_in(tmp_path):
        pass


SUITE = ["bench", "--suite", "gravac", "--model", "vgg16", "--layers", "6", "--size", "32", "--batch", "1"]


@pytest.mark.parametrize(
    ("command", "refused"),
    [(["train", "--resume"], ""), (["train", "dense", "--task", "digits", "--out"], FILE), ([*SUITE, "--out"], FILE)],
)
def test_all_ranks_end_where_the_one_that_leads_refuses_a_folder(
    tmp_path: Path, command: list[str], refused: str
) -> None:
    """The others trained on by themselves, or had a traceback of a lost connection, until torchrun ended them."""
    keep(tmp_path, replace(compared("dense"), checkpoint_every=1), LabCluster(2))
    folder = tmp_path / refused
    script = ["-c", "import sys; from gradwire.cli import main; sys.exit(main(sys.argv[1:]))"]
    with alone_in(tmp_path):
        first, other = ended_ranks([*script, *command, str(folder)], 2)
    reason = f"{folder} is no folder: name one for --out" if refused else f"another process trains in {folder}"
    assert (first.code, other.code) == (1, 1)
    assert reason in first.err.splitlines()[-1]
    assert other.err == ""


def test_records_are_whole_while_later_ones_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run that was killed then had lost all of them."""
    totals = Totals(1.0, 2.0, None, 0.0, 0.0, 0.0, 0.0)
    for step in (5, 8):
        append(tmp_path / METRICS, Record(step, 1.0, 0.5, totals).to_line())
    checkpoints.write(tmp_path, 5, checkpoints.SHARED, {"model": {}})

    def killed(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            records_kept(tmp_path)
    assert [record.step for record in records_kept(tmp_path)] == [5]
    assert [line["step"] for line, _ in read_lines(tmp_path / METRICS)] == [5]


def test_tensorboard_has_each_step_of_a_resumed_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # files of one second are read in the order of these numbers as text, in which 10 comes before 9
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    totals = Totals(1.0, 2.0, None, 0.0, 0.0, 0.0, 0.0)
    for last, steps in ((0, (5, 8)), (5, (6, 8, 9))):
        with Scalars(tmp_path, last) as scalars:
            for step in steps:
                scalars.add(Record(step, 1.0, 0.5, totals))
    seen = EventAccumulator(str(tmp_path))
    seen.Reload()
    assert [event.step for event in seen.Scalars("train/loss")] == [5, 6, 8, 9]


def test_the_parts_of_a_suite_are_named_where_all_of_it_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [tmp_path / name for name in ("1-digits", "2-digits")]
    for part in parts:
        part.mkdir()
        keep(part, compared("dense"), LabCluster(2))
    assert main(["train", "--resume", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"resume its parts one by one: {parts[0]}, {parts[1]}" in err


def test_a_run_is_resumed_where_it_was_begun_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data and plans were not found, or others of the same name were taken."""
    begun, other = tmp_path / "begun", tmp_path / "other"
    (begun / "runs").mkdir(parents=True)
    other.mkdir()
    (begun / "begun.py").write_text(OWN.replace("LOADER", LOADERS["its own"]))
    resumed: list[tuple[Path, Path, Comparison]] = []
    monkeypatch.setattr(train_command, "compare_in", lambda to, what, *_: resumed.append((Path.cwd(), to, what)))
    with chdir(begun):
        own = Training(task="own", options=("function=begun.py:make",), configurations=("dense",)).comparison(2)
        keep(Path("runs"), own, LabCluster(2))
    with chdir(other):
        assert main(["train", "--resume", "../begun/runs"]) == 0
        assert Path.cwd() == other
    ((where, to, comparison),) = resumed
    assert (where, to.resolve(), comparison) == (begun, begun / "runs", own)
    # a folder that is gone is not needed by every run
    with chdir(other):
        keep(Path(), compared("dense"), LabCluster(2))
    other.rename(tmp_path / "moved")
    assert main(["train", "--resume", str(tmp_path / "moved")]) == 0


def test_a_checkpoint_is_one_only_when_what_all_ranks_share_is_there(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path / "nowhere") == 0
    for step in (5, 10):
        checkpoints.write(tmp_path, step, "rank-0", {"loss": torch.tensor(1.0)})
    checkpoints.write(tmp_path, 5, checkpoints.SHARED, {"model": {}})
    assert checkpoints.newest(tmp_path) == 5
    checkpoints.write(tmp_path, 10, checkpoints.SHARED, {"model": {}})
    assert checkpoints.newest(tmp_path) == 10
    checkpoints.remove_before(tmp_path, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]
    assert checkpoints.read(tmp_path, 10, "rank-0") == {"loss": torch.tensor(1.0)}


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.write(tmp_path, 5, "rank-0", {"loss": torch.tensor(1.0)})

    def full(state: dict, file) -> None:
        file.write(b"some")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.write(tmp_path, 5, "rank-0", {"loss": torch.tensor(2.0)})
    assert checkpoints.read(tmp_path, 5, "rank-0") == {"loss": torch.tensor(1.0)}


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, 5, "rank-1", {"loss": torch.ones(100)})
    path = tmp_path / "checkpoint-5" / "rank-1.pt"
    path.write_bytes(path.read_bytes()[:200])
    said = rf"^{path} cannot be read \(.*\); start this run anew, without --resume$"
    # which the command line tells in one line where it is a rank
    with pytest.raises(OSError, match=said):
        checkpoints.read(tmp_path, 5, "rank-1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:50], "cannot be read"),
        (lambda text: "[1]", "cannot be read"),
        (lambda text: text.replace('"comparison"', '"x"'), r"does not say what to resume \(KeyError: 'comparison'\)"),
        (lambda text: text.replace('"recipe"', '"x"'), r"does not say what to resume \(KeyError: 'recipe'\)"),
    ],
)
def test_a_comparison_that_cannot_be_read_is_named(tmp_path: Path, change, said: str) -> None:
    keep(tmp_path, compared("dense"), LabCluster(2))
    path = tmp_path / FILE
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=rf"^{path} {said}.*; start this run anew, without --resume$"):
        kept(tmp_path)


def test_two_writers_of_one_path_do_not_break_each_other(tmp_path: Path) -> None:
    path = tmp_path / "gradwire.pt"
    with atomic_file.whole(path) as first:
        first.write(b"first")
        with atomic_file.whole(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_writers_have_left_is_removed_and_what_others_write_now_is_not(tmp_path: Path) -> None:
    path, left, written = (tmp_path / name for name in ("a.pt", ".a.pt.01234567.partial", ".a.pt.89abcdef.partial"))
    for each in (left, written):
        each.touch()
    os.utime(left, (0, 0))
    with atomic_file.whole(path) as file, suppress(KeyboardInterrupt), atomic_file.whole(path):
        file.write(b"all")
        raise KeyboardInterrupt
    assert sorted(tmp_path.iterdir()) == [written, path]
