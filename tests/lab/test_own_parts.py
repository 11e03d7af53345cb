"""A user's own compressors, memories, communicators and controllers: as texts, as objects, and in plan files."""

import os
from collections.abc import Callable
from importlib import import_module, reload
from inspect import signature
from pathlib import Path

import pytest
import torch

import gradwire as gw
from gradwire.cli import main
from gradwire.cli.early import configurations
from gradwire.cli.scheduler_commands import candidates_of, read_job
from gradwire.construct import text_of
from gradwire.importing import imported
from gradwire.lab.built_in_profiles import profile
from gradwire.lab.catalogue import found
from gradwire.lab.configuration import parse
from gradwire.lab.jobs.plan_job import candidate
from gradwire.notation import read_ways
from gradwire.rules import Rule
from tests.support.outside import Halving, InTurns, Momentum, SharedScale, Truncated
from tests.support.warm import program

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


@pytest.mark.parametrize("folder", ["", "my dir", "m\u00fcll"])
@pytest.mark.parametrize("gone", [False, True], ids=["there", "beside the plan"])
def test_saved_plans_and_profiles_are_read_in_another_folder(folder: str, gone: bool, tmp_path: Path) -> None:
    """The name of the file was all that was written of it, and nothing of a profile's was imported."""
    runs, file = tmp_path / "runs", tmp_path / folder / "codec.py"
    runs.mkdir()
    file.parent.mkdir(exist_ok=True)
    file.write_text(SCRIPT)
    script = """
import sys
import gradwire as gw
from gradwire.importing import imported
from gradwire.lab.built_in_profiles import profile
from gradwire.schedule.profile import Profile
from dataclasses import replace
mine, measured = imported(sys.argv[1] + ":Mine")(4), profile("resnet50")
way = gw.Group((), mine, gw.Residual(), gw.AllGather())
first = measured.candidates[1]
replace(measured, candidates=(measured.candidates[0], replace(first, way=way))).save("profile.json")
gw.Plan((replace(way, slots=tuple(slot.name for slot in measured.slots)),)).save("plan.json")
"""
    with program("-c", script, str(file), cwd=runs) as saving:
        assert saving.wait() == 0
    if gone:
        file.rename(runs / "codec.py")
    for job in ("profile.json", "plan.json"):
        measured, plan = read_job(str(runs / job), None)
        assert plan is None or measured.choices(plan)
        assert str(measured.candidates[1].way.compressor) == "Mine(digits=4)"
    parse(f"plan:{runs / 'plan.json'}")
    # what ranks compare, and states have, says nothing of folders
    assert '"codec.py:Mine"' in gw.Plan.load(runs / "plan.json").to_json()


def test_a_class_that_is_defined_again_is_the_one_that_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"again_{tmp_path.name}.py"
    file.write_text(SCRIPT)
    module = import_module(file.stem)
    old = module.Mine(2)
    text = gw.Plan((gw.Group(("weight",), old, gw.Residual(), gw.AllGather()),)).to_json()
    reload(module)
    assert type(gw.Plan.from_json(text).groups[0].compressor) is module.Mine is not type(old)
    # and where it was a script's own
    assert gw.Plan.from_json(text.replace(f"{file.stem}:", f"{file.name}:")).to_json() == text


def test_candidates_of_one_name_are_refused(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "codec.py").write_text(SCRIPT)
    one, other = (candidate(f"{tmp_path}/{version}/codec.py:Mine") for version in ("v1", "v2"))
    with pytest.raises(ValueError, match=r"two classes of the candidates codec\.py:Mine; rename one of them"):
        gw.Auto([gw.BF16(), one, other])
    with pytest.raises(ValueError, match=r"two classes of the candidates codec\.py:Mine"):
        gw.plan(profile, candidates=[f"{tmp_path}/{version}/codec.py:Mine" for version in ("v1", "v2")], hosts=2)
    with pytest.raises(ValueError, match=r"two classes of the candidates codec\.py:Mine"):
        gw.Auto(rules=[Rule("w*", (one,)), Rule("*", (other,))])
    assert gw.Auto([gw.BF16(), one, one.__class__(4)])


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


@pytest.mark.parametrize("folder", ["my project", "a+b@4;c,d|e=f(1)", "caf\u00e9 100%25:x", os.fsdecode(b"caf\xe9")])
def test_a_folder_may_have_any_name(folder: str, tmp_path: Path) -> None:
    """There was no compressor of its name."""
    (tmp_path / folder).mkdir()
    file = tmp_path / folder / "codec.py"
    file.write_text(SCRIPT)
    mine = imported(f"{file}:Mine")(4)
    text = text_of(mine)
    assert " " not in text
    for way in (text, f"localsteps:3+{text}+residual@25mb;dim<2={text}"):
        configurations([way])
        assert parse(way).compressor == mine
    assert [candidate(each) for each in candidates_of(f"bf16,{text},topk:0.1")] == [gw.BF16(), mine, gw.TopK(0.1)]
    assert read_ways(f"bf16|{text}") == [gw.BF16(), mine]
    assert found(text.rpartition(":")[0])[0][1].defaults == "digits=3"


def test_one_in_such_a_folder_is_timed(tmp_path: Path) -> None:
    (tmp_path / "my project").mkdir()
    file = tmp_path / "my project" / "codec.py"
    file.write_text(SCRIPT)
    timings = gw.bench(make, [imported(f"{file}:Mine")()], steps=1, repeats=1)
    assert timings[1].configuration == f"{tmp_path}/my%20project/codec.py:Mine"


@pytest.mark.parametrize("read", [parse, lambda text: configurations([text])])
@pytest.mark.parametrize("file", ["/tmp/my project/codec.py", "/tmp/a+b/codec.py", "my codec.py"])
def test_a_name_that_is_not_written_so_is_told(read: Callable[[str], object], file: str) -> None:
    with pytest.raises(ValueError, match=r"is no compressor: one of your own is file.py:MyClass, with %20 for a space"):
        read(f"{file}:Mine")
    with pytest.raises(ValueError, match="an @ in a folder's name is %40"):
        parse("/tmp/a@b/codec.py:Mine")


def test_the_list_shows_one_in_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", f"{OUTSIDE}:SharedScale"]) == 0
    shown = capsys.readouterr().out
    assert "all ranks agree on a scale" in shown
    assert "levels=4096" in shown


def test_the_list_shows_the_options_of_one_without_a_docstring(tmp_path: Path) -> None:
    """They were those of a metaclass's call."""
    (tmp_path / "bare.py").write_text(SCRIPT)
    assert found(f"{tmp_path}/bare.py:Mine")[0][1].summary == "Mine(digits: int = 3)"
    assert str(signature(gw.TopK)) == "(ratio: float = 0.01, value_bits: Literal[32, 4] = 32)"


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
