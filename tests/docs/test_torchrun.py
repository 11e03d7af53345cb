"""torchrun restarts the example's workers when one or a whole host dies, and training goes on from the checkpoint."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ranks import held_port, run_ranks
from tests.support.warm import program

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_torchrun.py"
STEP = 25
"""In which a rank dies; the last checkpoint is of step 20, of 40."""

DYING = f"""
import os, runpy, signal
from contextlib import suppress
from torch import nn

loss, steps, agent = nn.functional.cross_entropy, 0, os.getppid()

def kill(*processes):
    for process in processes:
        with suppress(ProcessLookupError):  # the other worker was faster
            os.kill(process, signal.SIGKILL)

def dying(*arguments):
    global steps
    steps += 1
    if steps == {STEP} and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        {{death}}
    return loss(*arguments)

nn.functional.cross_entropy = dying
runpy.run_path({str(EXAMPLE)!r})
"""
A_WORKER = 'os.environ["RANK"] == "1" and kill(os.getpid())'
A_HOST = "kill(agent, os.getpid())"


@contextmanager
def torchrun(folder: Path, death: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """The example in the folder, on two ranks of one host."""
    script = folder / f"{len([*folder.glob('*.py')])}.py"
    script.write_text(DYING.format(death=death))
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *options, str(script)]
    # else workers that are started again read in the store where those before them listened: pytorch/pytorch#135712
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    pipe = subprocess.PIPE
    with program(*command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True) as agent:
        try:
            yield agent
        finally:
            agent.kill()


def told(agent: "subprocess.Popen[str]") -> list[tuple[str, str]]:
    """Each rank's checksum of the model, and how many steps it made since it was last started."""
    output, errors = agent.communicate(timeout=150)
    assert agent.returncode == 0, errors
    return printed(output)


def printed(output: str) -> list[tuple[str, str]]:
    return re.findall(r"(-?\d+\.\d+), (\d+) steps", output)


def test_a_worker_that_dies_changes_nothing(tmp_path: Path):
    (tmp_path / "whole").mkdir()
    undisturbed = printed(run_ranks([str(EXAMPLE)], 2, cwd=tmp_path / "whole"))
    with torchrun(tmp_path, A_WORKER, "--standalone", "--max-restarts", "1") as agent:
        resumed = told(agent)
    assert [steps for _, steps in undisturbed + resumed] == ["40", "40", "20", "20"]
    assert len({checksum for checksum, _ in undisturbed + resumed}) == 1


def test_fewer_hosts_go_on(tmp_path: Path):
    options = ["--nnodes", "1:2", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    with held_port() as port:
        options += ["--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf"]
        with torchrun(tmp_path, "pass", *options, "is_host=true,last_call_timeout=15") as agent:
            with torchrun(tmp_path, A_HOST, *options, "is_host=false,last_call_timeout=15") as dying:
                dying.communicate(timeout=150)
            assert dying.returncode == -signal.SIGKILL
            resumed = told(agent)
    assert len(resumed) == 2
    assert len(set(resumed)) == 1
    assert resumed[0][1] == "20"
