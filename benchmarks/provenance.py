"""Results with where they come from: date, commit, machine, command, and the code that was measured.

A result is older than the code where the sources of what its script measures are not those that it was made with; but
losses are not where both train alike to the last bit, as `equal.py` has shown.
"""

import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CALLED = "GRADWIRE_BENCHMARK"

ALGORITHMS = ("compressors", "communicators", "memories", "ops", "native")
STEP = (*ALGORITHMS, "runtime", "transports", "frontends")
PLANNED = (*STEP, "schedule", "tuner")
MEASURED = {
    "ablation": PLANNED, "auto": PLANNED, "link_drop": PLANNED, "collectives": (*ALGORITHMS, "runtime", "transports"),
    "controllers": (*STEP, "controllers"), "kernels": ("ops", "native"), "multilevel": ALGORITHMS,
    "published": ("schedule", "lab/scheduling"), "search": ("schedule",), "selection": ALGORITHMS,
    "wire": ("compressors", "communicators", "runtime", "transports"),
}  # fmt: skip
"""Whose sources a script measures; all others measure whole steps. Below gradwire/, but for native/."""
LOSSES = ("benchmarks/fidelity.py", "benchmarks/warm_up.py", "benchmarks/worth.py", "benchmarks/choices.py --curves")
"""What measures losses alone, in trainings of `fidelity.py`'s tasks."""


def save(name: str, **found: Any) -> None:
    """Writes benchmarks/results/`name` with where it comes from."""
    RESULTS.mkdir(exist_ok=True)
    origin = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "command": command(),
        "code": code(Path(sys.argv[0]).stem),
    }
    (RESULTS / name).write_text(json.dumps(origin | found, indent=1) + "\n")
    print(f"\nwritten to {RESULTS / name}")


def command() -> str:
    """What was called; ranks that a script starts have it in their environment."""
    script, *arguments = sys.argv
    return os.environ.get(CALLED) or shlex.join(["python", f"benchmarks/{Path(script).name}", *arguments])


def load(name: str) -> dict[str, Any]:
    """The result benchmarks/results/`name`.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def is_older(result: dict[str, Any]) -> bool:
    """Whether what a result measured has changed since."""
    now = {code(Path(result["command"].split()[1]).stem)}
    if any(script in result["command"] for script in LOSSES):
        for pair in reversed(load("equal")["pairs"]):
            now |= {pair["of"]} if pair["is"] in now else set()
    return result.get("code") not in now


def code(script: str) -> str:
    """A digest of the sources that the script measures, whatever comments and docstrings say, but for kernels of GPUs:
    no result is of one."""
    digest = hashlib.sha256()
    for folder in MEASURED.get(script, STEP):
        for path in sorted((ROOT if folder == "native" else ROOT / "gradwire").joinpath(folder).rglob("*")):
            if path.suffix in {".py", ".cpp", ".h"} and path.parent.name != "triton":
                source = path.read_text()
                told = _instructions(source) if path.suffix == ".py" else source
                digest.update(f"{path.relative_to(ROOT).as_posix()}{told}".encode())
    return digest.hexdigest()[:12]


@cache
def _instructions(source: str) -> str:
    """What a Python source has a computer do."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [line for line in node.body if not _is_docstring(line)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    """The processor, and how many cores and threads there are."""
    told = subprocess.run(["lscpu", "--json"], capture_output=True, text=True, check=True).stdout
    facts = {each["field"].rstrip(":"): each["data"] for each in _leaves(json.loads(told)["lscpu"])}
    cores = int(facts["Core(s) per socket"]) * int(facts["Socket(s)"])
    return f"{facts['Model name']}, {cores} cores, {facts['CPU(s)']} threads"


def _leaves(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [leaf for each in entries for leaf in (each, *_leaves(each.get("children", [])))]
