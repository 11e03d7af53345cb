"""docs/published.md: it is what the generator makes, and every call and command in it runs."""

import json
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.pages.document import PUBLISHED
from benchmarks.pages.published import table
from gradwire.cli import main
from gradwire.lab.experiments.presets import SYSTEMS, preset
from tests.lab.test_presets import FILES, SMALL, small
from tests.processes import published
from tests.support.ranks import run_ranks

ROWS = [row for rows in table.SYSTEMS.values() for row in rows]
CALLS = list(dict.fromkeys(row.how for row in ROWS if row.how and not row.command))
COMMANDS = [shlex.split(text.partition("gradwire ")[2]) for text in dict.fromkeys(r.how for r in ROWS if r.command)]
OWN = ["--model", published.OWN]
TIMED = ["--hosts", "2", "--link", "loopback", "--steps", "1", "--repeats", "1"]


def test_the_page_is_what_the_generator_makes() -> None:
    assert PUBLISHED.read_text() == table.page(), "run `make benchmarks`"


def test_every_row_has_a_way_or_a_remark() -> None:
    assert [row.says for row in ROWS if not row.how and not row.note] == []


@pytest.mark.long
def test_every_call_runs(tmp_path: Path) -> None:
    run(CALLS, tmp_path)


def plain(words: list[str]) -> bool:
    """Whether a command has configurations alone, and none that is searched."""
    return words[0] == "bench" and not any(word.startswith("--") or word.endswith("@planned") for word in words)


def test_every_configuration_is_timed(tmp_path: Path) -> None:
    """All of `gradwire bench CONFIG...`, as one command."""
    named = dict.fromkeys(name for words in COMMANDS if plain(words) for name in words[1:])
    run([["bench", *named, *OWN, *TIMED]], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["bench", "plan", "train"])
def test_every_command_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = ["--out", str(tmp_path)]
    mine = [words for words in COMMANDS if words[0] == name and not plain(words) and "--play" not in words]
    # bench alone writes no folder
    run(
        [[*reduced(words, tmp_path), *([] if name == "bench" and "--suite" not in words else out)] for words in mine],
        tmp_path,
    )


@pytest.mark.long
@pytest.mark.usefixtures("forked_ranks")
def test_a_cluster_is_played_and_simulated(tmp_path: Path) -> None:
    (played,) = [words for words in COMMANDS if "--play" in words]
    assert main([*played, *OWN, "--steps", "1", "--repeats", "1", "--out", str(tmp_path)]) == 0
    (simulated,) = [words for words in COMMANDS if words[0] == "simulate"]
    assert main([*simulated, "--ranks", "8", "--out", str(tmp_path)]) == 0


def reduced(words: list[str], folder: Path) -> list[str]:
    """A command with a small model, or with small data below the folder."""
    named = dict(pairwise(words))
    if words[0] == "bench":
        return [*without("--batch", words), *([] if "--suite" in words else OWN), *TIMED]
    if words[0] == "plan":
        return [*without("--task", words), *OWN, "--hosts", "2", "--link", "loopback"]
    length = "--epochs" if "--epochs" in words else "--steps"
    return [*on_small_data(words, named, folder), length, "1", "--hosts", "2"]


def without(option: str, words: list[str]) -> list[str]:
    at = words.index(option) if option in words else len(words)
    return words[:at] + words[at + 2 :]


def on_small_data(words: list[str], named: dict[str, str], folder: Path) -> list[str]:
    if suite := named.get("--suite"):
        for task in {training.task for training in SYSTEMS[suite].values()} if "--data" in named else ():
            write(task, folder)
        return [*words, *(["--data", str(folder)] if "--data" in named else [])]
    if name := named.get("--preset"):
        files, sizes = small(name, folder)
        # one of its configurations
        return ["train", preset(name).configurations[-1], *words[1:], "--data", files, *map("--set={}".format, sizes)]
    if task := named.get("--task"):
        # a task's own sizes count, and an option of a task is given once
        sizes = {each.split("=")[0]: each for each in ("layers=1", "width=64", *SMALL[task])}
        return [*words, "--data", write(task, folder), *map("--set={}".format, sizes.values())]
    return [*words, *OWN]


def write(task: str, folder: Path) -> str:
    (folder / task).mkdir(exist_ok=True)
    return str(FILES[task](folder / task))


def run(rows: list[str | list[str]], folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps(rows))
    run_ranks(["-m", "tests.processes.published", str(folder / "rows.json")], 2, imports=["tests.processes.published"])
