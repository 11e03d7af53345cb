"""A user's own compressors, memories, communicators and controllers: as texts, as objects, and in plan files."""

from pathlib import Path

import pytest
import torch

import gradwire as gw
from gradwire.cli import main
from gradwire.cli.scheduler_commands import candidates_of
from gradwire.construct import text_of
from gradwire.lab.configuration import parse
from gradwire.lab.jobs.plan_job import candidate
from tests.support.outside import Halving, InTurns, Momentum, SharedScale, Truncated

pytestmark = pytest.mark.usefixtures("forked_ranks")

OUTSIDE = "tests.support.outside"
GROUP = gw.Group(("weight", "bias"), SharedScale(64), Momentum(0.5), gw.AllReduce())
SCRIPT = """
from dataclasses import dataclass
from tests.support.outside import Truncated

@dataclass(frozen=True)
class Mine(Truncated):
    digits: int = 3

class Bare:
    pass
"""


def make():
    return torch.nn.Linear(2, 1), lambda rank, world: [torch.ones(2, 2)], lambda model, batch: model(batch).mean()


def test_texts_name_them_with_their_options_in_any_place() -> None:
    read = parse(f"{OUTSIDE}:SharedScale:levels=64+{OUTSIDE}:Momentum:0.5+{OUTSIDE}:Halving@25MB")
    assert (read.compressor, read.memory) == (SharedScale(64), Momentum(0.5))
    assert isinstance(read.controller, Halving)
    assert isinstance(parse(f"TopK:0.1+{OUTSIDE}:InTurns").communicator, InTurns)
    assert parse(f"localsteps:30+{OUTSIDE}:Truncated").compressor == Truncated()


@pytest.mark.parametrize("part", [Truncated(), SharedScale(64), GROUP], ids=str)
def test_objects_have_a_text(part) -> None:
    read = parse(text_of(part))
    group = (read.compressor, read.memory, read.communicator)
    assert group == ((part.compressor, part.memory, part.communicator) if part is GROUP else (part, None, None))


def test_candidates_of_plans_may_be_among_them() -> None:
    texts = candidates_of(f"bf16,{OUTSIDE}:SharedScale:64,topk:0.1")
    assert [candidate(text) for text in texts] == [gw.BF16(), SharedScale(64), gw.TopK(0.1)]


def test_plans_are_read_back_once_their_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = gw.Plan((GROUP,))
    assert gw.Plan.from_json(plan.to_json()) == plan
    # a file runs no code, until the user names it on the command line
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    own = plan.to_json().replace(f"{OUTSIDE}:SharedScale", "script.py:Mine").replace("levels", "digits")
    Path("plan.json").write_text(own.replace("AllReduce", "AllGather"))
    with pytest.raises(ValueError, match=r"names script.py:Mine, which is not imported here; import it, then read"):
        gw.Plan.load("plan.json")
    read = parse("plan:plan.json").plan
    assert read
    assert read.to_json().count("script.py:Mine") == 1
    assert gw.Plan.load("plan.json") == read


def test_a_file_s_codec_and_its_plan_are_timed(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    mine = parse("script.py:Mine:4").compressor
    assert mine
    gw.Plan((gw.Group(("weight", "bias"), mine, gw.Residual(), gw.AllGather()),)).save("plan.json")
    arguments = ["script.py:Mine:4", "--plan", "plan.json", "--model", f"{__file__}:make", "--steps", "1"]
    assert main(["bench", *arguments, "--repeats", "1"]) == 0, capsys.readouterr().err
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {"script.py:Mine:4", "plan:plan.json"} <= {row[0] for row in rows if row}


def test_the_list_shows_one_in_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", f"{OUTSIDE}:SharedScale"]) == 0
    shown = capsys.readouterr().out
    assert "all ranks agree on a scale" in shown
    assert "levels=4096" in shown


def test_the_list_explains_the_baseline_by_both_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "dense"]) == main(["list", "DDP"]) == 0
    one, other = capsys.readouterr().out.split("dense, one of the baselines")[1:]
    assert one == other
    assert "averaged uncompressed" in one
    assert [parse(text).text for text in ("ddp", "ddp@25MB", "dense")] == ["dense", "dense@25mb", "dense"]


MISTAKES = {
    f"{OUTSIDE}:Missing": f"{OUTSIDE} has no function or class 'Missing'",
    "nowhere.at.all:Codec": "nowhere.at.all cannot be imported: No module named 'nowhere'",
    f"{OUTSIDE}:Momentum": f"{OUTSIDE}:Momentum is no compressor: name a subclass of gw.Compressor",
    f"topk+{OUTSIDE}:Truncated": "is no memory, communicator or controller: name a subclass of gw.Memory or",
    f"{OUTSIDE}:SharedScale:many": "levels of " + f"{OUTSIDE}:SharedScale takes a whole number, not 'many'",
    f"{OUTSIDE}:SharedScale:bits=2": f"there is no option of {OUTSIDE}:SharedScale named 'bits': there are levels",
    f"{OUTSIDE}:Counting": f"{OUTSIDE}:Counting is no compressor",
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=MISTAKES)
def test_mistakes_get_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        parse(text)
    assert message in str(error.value)


def test_classes_whose_options_have_no_text_are_refused() -> None:
    class Local(gw.Controller):
        def decide(self, observations):
            pass

    with pytest.raises(ValueError, match="is no dataclass, whose options can be written"):
        text_of(Local())
