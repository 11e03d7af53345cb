"""The published trainings: their definitions, and each of them in small, from end to end and resumed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.cli import main, train_command
from gradwire.construct import options_of
from gradwire.lab.configuration import parse_all
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.presets import PRESETS, preset
from gradwire.lab.launch.launch import launch
from gradwire.lab.models import MODELS
from gradwire.lab.workloads import TASKS
from tests.support.small_files import (
    write_cifar10,
    write_cifar100,
    write_idx,
    write_image_folder,
    write_ptb,
    write_squad,
    write_wikitext,
)

pytestmark = pytest.mark.usefixtures("forked_ranks")

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
FILES = {
    "images": write_image_folder,
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "mnist": write_idx,
    "ptb": write_ptb,
    "wikitext": write_wikitext,
    "masked": write_wikitext,
    "squad": write_squad,
}
SMALL = {
    "images": ["size=16", "batch=3"],
    "cifar10": ["batch=30"],
    "cifar100": ["batch=20"],
    "mnist": ["batch=32"],
    "ptb": ["context=8", "batch=4", "width=16"],
    "wikitext": ["context=16", "batch=4", "tokenizer=bpe:300"],
    "masked": ["length=16", "batch=4", "tokenizer=bpe:300"],
    "squad": ["length=48", "batch=4", "tokenizer=bpe:300"],
}

TRAINED = list({training.task: name for name, training in reversed(PRESETS.items())}.values())
"""One of each task: others differ in models, which have tests of their own, and in numbers."""

# Each of these for two epochs, as a whole, and stopped after one and a half and on from the checkpoint.
SCRIPT = """
import json, os, sys
from pathlib import Path
from gradwire.cli.train_command import compare_in
from gradwire.lab.jobs import train_job as job
from gradwire.lab.experiments.presets import preset
from gradwire.lab.launch.runner import runner
from gradwire.lab.launch.lab_cluster import LabCluster

class Stopped(Exception): pass
step = job._Training._step
left = [0]

def counted(training, *batch):
    if left[0] == 0:
        raise Stopped
    left[0] -= 1
    step(training, *batch)
job._Training._step = counted

folder, small = Path(sys.argv[1]), json.loads(sys.argv[2])
with runner(LabCluster(2)) as ranks:
    assert ranks.agreed(lambda: Path("/of-rank", os.environ["RANK"])) == Path("/of-rank/0")
    for name, (files, options) in small.items():
        training = preset(name).on(files)
        training = training.altered(options=options, configurations=training.configurations[1:2], epochs=2)
        comparison = training.comparison(2, checkpoint_every=1)
        (_, spec), = comparison.specs(folder / "whole" / name)
        left[0] = steps = comparison.course.steps
        (folder / "whole" / name).mkdir(parents=True, exist_ok=True)
        ranks.run(job.train, spec, folder / "whole" / name / "metrics.jsonl", lambda line: None)
        for left[0] in (steps * 3 // 4, steps):
            try:
                compare_in(folder / name, comparison, LabCluster(2), ranks)
            except Stopped:
                pass
sys.stdout.flush()
os._exit(0)
"""


def small(name: str, folder: Path) -> tuple[str, list[str]]:
    """A preset's files and what it is cut down to."""
    training = preset(name)
    model = MODELS[training.options[0].removeprefix("model=published-")] if "published" in training.options[0] else None
    width = [] if model is None or training.task == "ptb" else [f"width={64 if model.widths.step == 64 else 4}"]
    layers = [f"layers={len(model.stages)}"] if model else []
    (folder / training.task).mkdir(parents=True, exist_ok=True)
    return str(FILES[training.task](folder / training.task)), [*SMALL[training.task], *width, *layers]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presets")
    wanted = {name: small(name, folder / "files") for name in TRAINED}
    cache = {"XDG_CACHE_HOME": str(folder / "cache")}
    launch(["-c", SCRIPT, str(folder), json.dumps(wanted)], 2, env=cache, timeout_s=300)
    return folder


def records(metrics: Path) -> list[dict]:
    """What does not depend on the clock."""
    lines = map(json.loads, metrics.read_text().splitlines())
    return [{key: line[key] for key in ("step", "loss", "held_out", "replicas", "wire_bytes")} for line in lines]


@pytest.mark.long
@pytest.mark.parametrize("name", TRAINED)
def test_a_preset_runs_two_epochs_is_resumed_and_reports_its_metric(name: str, trained: Path) -> None:
    resumed = records(*(trained / name).glob("*/metrics.jsonl"))
    assert resumed == records(trained / "whole" / name / "metrics.jsonl")
    facts = json.loads((trained / name / "run.json").read_text())
    evaluated = [record for record in resumed if record["held_out"]]
    assert [record["step"] for record in evaluated] == [facts["steps"] // 2, facts["steps"]]
    metric = preset(name).metric or TASKS[preset(name).task].metric
    assert metric in evaluated[-1]["held_out"]
    report = (trained / name / "report.html").read_text()
    assert f"held-out {metric.replace('_', ' ')}" in report
    assert preset(name).published in report


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_options_and_configurations_are_known(name: str) -> None:
    training = preset(name)
    given = dict(option.split("=") for option in training.on(Path("files")).options)
    assert given.keys() <= options_of(TASKS[training.task]).keys()
    parse_all(training.configurations)
    assert training.configurations[0] == "dense"
    assert training.recipe.lr
    assert bool(training.recipe.epochs) != bool(training.recipe.steps)
    assert f"| `{name}` | {training.files} |" in DOCS.read_text()


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PRESETS)


def test_a_rate_for_one_rank_grows_with_them_unless_the_user_gives_one(tmp_path: Path) -> None:
    mnist = preset("acpsgd-mnist").on(write_idx(tmp_path)).altered(options=["batch=32"])
    assert [mnist.comparison(ranks).recipe.lr for ranks in (1, 4)] == pytest.approx([0.01, 0.04])
    assert mnist.altered(lr=0.5).comparison(4).recipe.lr == 0.5


def test_presets_that_begin_with_trained_weights_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine_tuned = {name for name, training in PRESETS.items() if training.from_weights}
    assert fine_tuned == {
        "cupcake-bert-base-squad", "adtopk-vit-large-imagenet", "adtopk-bert-large-squad", "adtopk-gpt2-large-wikitext",
    }  # fmt: skip
    assert main(["list", "presets"]) == 0
    assert " ".join(capsys.readouterr().out.split()).count("give --pretrained") == len(fine_tuned)
    training = preset("adtopk-gpt2-large-wikitext").on(write_wikitext(tmp_path))
    small = training.altered(options=["model=gpt", "width=8", "context=8", "batch=1", "tokenizer=words"])
    assert "published from trained weights, here from random ones" in (small.comparison(1).published or "")
    given = training.altered(options=["pretrained=weights"])
    assert not any(option.startswith("tokenizer=") for option in given.options), "that of the weights"
    assert "tokenizer=words" in training.altered(options=["pretrained=weights", "tokenizer=words"]).options


def test_what_is_given_replaces_the_presets_own() -> None:
    training = preset("gravac-lstm").altered(options=["width=8", "batch=4"], epochs=3, clip=1.0)
    assert {"width=8", "batch=4", "context=35"} <= set(training.options)
    assert training.recipe == replace(preset("gravac-lstm").recipe, steps=None, epochs=3, clip=1.0)
    assert training.configurations == preset("gravac-lstm").configurations


def test_a_plan_is_one_more_to_compare_with_a_presets_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the place of all of them."""
    compared: list[Comparison] = []
    monkeypatch.setattr(train_command, "compare", lambda comparison, *_: compared.append(comparison))
    monkeypatch.setattr(Comparison, "__post_init__", lambda comparison: None)
    monkeypatch.setattr("gradwire.lab.experiments.training.parse_all", list)
    command = ["train", "--preset", "acpsgd-mnist", "--data", str(tmp_path), "--plan", "plan.json"]
    assert main(command) == 0
    assert main([*command, "topk"]) == 0
    own = list(preset("acpsgd-mnist").configurations)
    assert [each.configurations for each in compared] == [[*own, "plan:plan.json"], ["topk", "plan:plan.json"]]


def test_drops_and_warm_up_keep_their_share_of_a_length_in_the_other_unit() -> None:
    images, cifar = preset("cupcake-resnet50-imagenet"), preset("gravac-resnet101")
    shorter = images.altered(steps=1200).recipe
    assert (shorter.drops, shorter.warm_up, shorter.epochs) == ([300, 600, 800], 50, None)
    assert cifar.altered(epochs=84).recipe.drops == [18, 28]
    # in its own unit, and where they are given, they are as they are said
    assert images.altered(epochs=40).recipe == replace(images.recipe, epochs=40)
    given = images.altered(steps=1200, schedule="drop:9", warm_up=3.0).recipe
    assert (given.drops, given.warm_up) == ([9], 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "gravac-lstn"], "there is no preset 'gravac-lstn': did you mean gravac-lstm?"),
        (
            ["--preset", "gravac-lstm"],
            "preset gravac-lstm trains on files that you have (ptb.train.txt, ptb.valid.txt)",
        ),
        (["--preset", "gravac-lstm", "--data", "nowhere"], "no file nowhere/ptb.train.txt"),
        (["--preset", "gravac-lstm", "--task", "ptb"], "three things to train: give one"),
        (["--preset", "gravac-lstm", "--suite", "gravac"], "suite gravac has configurations and options of its own"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
