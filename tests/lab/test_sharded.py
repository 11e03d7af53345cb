"""The lab trains and times models that FSDP2 shards inside of hosts."""

import json
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.lab.configuration import parse_all
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.launch.lab_cluster import LabCluster
from tests.processes.published import OWN

pytestmark = pytest.mark.usefixtures("forked_ranks")

SMALL = [word for size in ("width=32", "layers=1", "batch=2", "max_bytes=100000") for word in ("--set", size)]


@pytest.mark.long
def test_dense_and_fp32_train_a_language_model_alike(tmp_path: Path) -> None:
    options = ["--task", "lm", *SMALL, "--hosts", "2", "--shard", "2"]
    configurations = ["dense", "fp32", "topk:0.05"]
    assert main(["train", *configurations, *options, "--steps", "6", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    dense, fp32, topk = (
        [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("dense", "fp32", "topk-0.05")
    )
    losses = [[(line["loss"], line["held_out"]) for line in lines] for lines in (dense, fp32, topk)]
    assert losses[0] == losses[1]  # two replicas' sums have one order
    assert losses[0] != losses[2]


@pytest.mark.long
def test_replicas_of_two_ranks_take_local_steps(tmp_path: Path) -> None:
    options = ["--task", "lm", *SMALL, "--optimizer", "sgd", "--hosts", "2", "--shard", "2"]
    configurations = ["dense", "localsteps:1,lr=1,momentum=0", "localsteps:3"]
    assert main(["train", *configurations, *options, "--steps", "6", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    dense, every, rounds = (
        [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("dense", "localsteps-1-lr=1-momentum=0", "localsteps-3")
    )
    assert [line["loss"] for line in every] == pytest.approx([line["loss"] for line in dense], rel=1e-4)
    assert every[-1]["wire_bytes"] == pytest.approx(dense[-1]["wire_bytes"], rel=0.02)
    assert 3 * rounds[-1]["wire_bytes"] == pytest.approx(every[-1]["wire_bytes"], rel=0.01)
    assert rounds[-1]["dense_bytes"] == dense[-1]["dense_bytes"]


@pytest.mark.long
def test_step_times_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", OWN, "--hosts", "2", "--shard", "2", "--steps", "1", "--repeats", "1"]
    assert main(["bench", "dense", "topk:0.05", *options]) == 0
    assert "topk:0.05" in capsys.readouterr().out


def test_what_cannot_be_sharded_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="give a divisor to --shard"):
        LabCluster(3, shard=2)
    with pytest.raises(ValueError, match="leave --checkpoint-every or --shard out"):
        Comparison(
            configurations=parse_all(["dense"]), task="digits", options=[], ranks=4, recipe=Recipe(steps=2), shard=2,
            checkpoint_every=1,
        )  # fmt: skip
