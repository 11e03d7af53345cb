"""What the pages show of code, in pieces, runs as it stands once a reader has added model, data and optimizer."""

import os
import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest
import torch.distributed as dist

import tests.support.fragments as of
from tests.support.ranks import run_ranks
from tests.support.warm import Forked

DOCS = Path(__file__).parents[2] / "docs"


def shown(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)


def tabs(page: str) -> dict[str, str]:
    """The code in each tab of a page, by the tab's title."""
    text = (DOCS / f"{page}.md").read_text()
    found = re.findall(r'^=== "(.*?)"\n\n    ```python\n(.*?)^    ```', text, re.MULTILINE | re.DOTALL)
    return {title: dedent(code) for title, code in found}


def python(script: Path, **environment: str) -> Forked:
    pipe = subprocess.PIPE
    return Forked([str(script)], cwd=script.parent, env=os.environ | environment, stdout=pipe, stderr=pipe, text=True)


def written(script: str, folder: Path) -> Path:
    """Once, before a process reads it: one that began while it is written again would run a part of it, or nothing."""
    path = folder / "script.py"
    path.write_text(script)
    return path


def on(ranks: int, script: str, folder: Path) -> None:
    run_ranks([str(written(script + of.ENDED, folder))], ranks, cwd=folder)


def test_a_training_is_saved_and_resumed_on_more_ranks_and_on_fewer(tmp_path: Path):
    (code,) = shown("checkpoints")
    saves, loads = code.split("handle.load_state_dict")
    on(2, of.BEGIN + of.ATTACHED + of.STEPPED + saves, tmp_path)
    for ranks in (3, 1):
        on(ranks, of.BEGIN + of.ATTACHED + f"handle.load_state_dict{loads}" + of.STEPPED + of.SAME, tmp_path)


@pytest.mark.parametrize(("title", "ranks"), [("DDP", 2), ("FSDP2", 4), ("Local steps", 2)])
def test_a_tab_of_the_first_page_trains(title: str, ranks: int, tmp_path: Path):
    code = tabs("index")[title]
    assert len(code.splitlines()) <= 14
    same = of.SAME.replace(".detach()", ".full_tensor()") if title == "FSDP2" else of.SAME
    on(ranks, of.BEGIN + of.TABBED + code.replace('"cuda", (2, 8)', '"cpu", (2, 2)') + same, tmp_path)


def test_local_steps_are_taken(tmp_path: Path):
    (code,) = shown("local_steps")
    ways = [(way, re.findall(r"^(\w+) = gw.LocalSteps", way, re.MULTILINE)[0]) for way in code.split("\n\n")]
    taken = [way + of.LOCAL.format(way=name) for way, name in ways]
    on(2, of.BEGIN + of.JOINED + "inner = optimizer\n" + "".join(taken), tmp_path)


def test_shards_are_trained_and_saved(tmp_path: Path):
    trains, compresses, saves = shown("shards")
    on(4, of.BEGIN + of.JOINED + of.SHARDED + trains + saves, tmp_path)
    on(2, of.BEGIN + of.JOINED + compresses.replace("...  #", "loss(model, batch(0)).backward()  #"), tmp_path)


def test_a_job_goes_on_where_a_rank_is_lost(tmp_path: Path):
    serves, trains, compares, names, _ = shown("faults")
    here: dict[str, object] = {"host": "127.0.0.1", "port": 0, "dist": dist}
    exec(serves, here)
    store = here["store"]
    assert isinstance(store, dist.TCPStore)
    text = of.BEGIN + of.TOLD + of.LOST + trains + "step = 0\n" + compares + of.LOGGED + names + of.SAME
    script = written(text, tmp_path)
    told = {"PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo"}
    processes = [python(script, **told, NUMBER=str(number)) for number in range(3)]
    finished = [ended(process) for process in processes]
    assert [code for code, _ in finished] == [0, 0, 1], finished


def test_ranks_of_which_one_gets_sigterm_save_after_the_same_step(tmp_path: Path):
    agrees = shown("faults")[-1]
    assert "...  #" in agrees
    agrees = agrees.replace("...  #", "train()  #")
    on(2, of.BEGIN + of.ATTACHED + of.SENDS_SIGTERM + agrees + of.ENDED_AT_TEN, tmp_path)


def ended(process: subprocess.Popen[str]) -> tuple[int, tuple[str, str]]:
    """Its exit code, and what it has said."""
    try:
        said = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()
    return process.returncode, said


def test_a_job_under_slurm_is_what_its_script_says(tmp_path: Path):
    (script,) = shown("start", "bash")
    batch = tmp_path / "job.sh"
    batch.write_text(script)
    subprocess.run(["bash", "-n", batch], check=True)
    for name, text in {"scontrol": "printf 'a1\\na2\\n'", "srun": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "a[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    told = subprocess.run(["bash", batch], env=path | slurm, capture_output=True, text=True, check=True).stdout
    assert "--nnodes 2" in told
    assert "--rdzv-endpoint a1:29500" in told
