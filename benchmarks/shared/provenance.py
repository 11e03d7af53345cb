"""Kept results, each with the date, commit, machine and command that it comes from."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BENCHMARKS = Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results"
CALLED = "GRADWIRE_BENCHMARK"
RENAMED = {"controllers.py --part lgreco": "lgreco.py"}
"""Parts of recorded commands whose script has another name today, and what to write in their place."""


def save(name: str, **found: Any) -> None:
    """Writes benchmarks/results/`name`, with its date, commit, machine and command."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(_origin() | found, indent=1) + "\n")
    print(f"\nwritten to {RESULTS / name}")


def save_more(name: str, key: str = "runs", **found: Any) -> None:
    """As `save`, for a result whose rows, under `key`, may be an earlier run's: these keep their origin."""
    path = RESULTS / name
    before = json.loads(path.read_text()) if path.exists() else {key: []}
    now = [json.dumps(row) for row in found[key]]
    named = {row for origin in before.get("earlier", []) for row in origin.get("rows", [])}
    own = [row for row in range(len(before[key])) if row not in named]
    earlier, this_run = list[dict[str, Any]](), _run_of(_origin())
    for origin in origins(before) if before[key] else []:
        texts = {json.dumps(before[key][row]) for row in origin.get("rows", own)}
        kept = [row for row, text in enumerate(now) if text in texts]
        if kept and _run_of(origin) != this_run:
            earlier.append(origin | {"rows": kept})
    save(name, **found, earlier=earlier)


def _run_of(origin: dict[str, Any]) -> tuple[str, str]:
    # a commit is followed by a + once this run has written
    return origin["commit"].rstrip("+"), origin["command"]


def _origin() -> dict[str, Any]:
    """The date, and this run's commit, machine and command."""
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine(), "command": command()}


def origins(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Date, commit, machine and command of the run that wrote a result, and of earlier runs whose rows it has kept. An
    earlier origin also has `rows`, the indices of its rows; all others are the last run's."""
    own = {key: result[key] for key in ("date", "commit", "machine", "command")}
    return [own, *result.get("earlier", [])]


def command() -> str:
    """The command line of this run; ranks that a script starts read it from their environment."""
    script, *arguments = sys.argv
    return os.environ.get(CALLED) or shlex.join(["python", f"benchmarks/{_place(Path(script).name)}", *arguments])


def command_today(result: dict[str, Any]) -> str:
    """The command that measured a result, with the path that its script has now."""
    command = result["command"]
    for before, today in RENAMED.items():
        command = command.replace(before, today)
    return re.sub(r"benchmarks/(?:\w+/)?(\w+\.py)", lambda path: f"benchmarks/{_place(path[1])}", command, count=1)


def _place(script: str) -> str:
    """The room and the name of a script."""
    (path,) = BENCHMARKS.glob(f"*/{script}")
    return str(path.relative_to(BENCHMARKS))


def load(name: str) -> dict[str, Any]:
    """The result benchmarks/results/`name`.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def known_runs(file: str, key: str = "runs") -> list[dict[str, Any]]:
    """The runs in benchmarks/results/`file`, which are under `key`; none where there is no such file yet."""
    path = RESULTS / file
    return json.loads(path.read_text())[key] if path.exists() else []


def commits_ago(result: dict[str, Any]) -> int | None:
    """The number of commits since the one that was measured, the first where several were; None where git does not know
    that one."""
    measured = re.findall(r"[0-9a-f]{7,}", result["commit"])[0]
    found = _git("rev-list", "--count", f"{measured}..HEAD")
    return int(found) if found else None


def commit() -> str:
    return _git("describe", "--always", "--dirty=+", "--exclude=*")


def _git(*command: str) -> str:
    """The output of git; empty where it fails, as outside of a checkout."""
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def machine() -> str:
    """The processor, and how many cores and threads there are."""
    printed = subprocess.run(["lscpu", "--json"], capture_output=True, text=True, check=True).stdout
    facts = {each["field"].rstrip(":"): each["data"] for each in _leaves(json.loads(printed)["lscpu"])}
    cores = int(facts["Core(s) per socket"]) * int(facts["Socket(s)"])
    return f"{facts['Model name']}, {cores} cores, {facts['CPU(s)']} threads"


def _leaves(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [leaf for each in entries for leaf in (each, *_leaves(each.get("children", [])))]
