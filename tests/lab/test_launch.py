"""Launching ranks: what they are told, how their end is reported, and that none outlives the launcher."""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import DistStoreError, TCPStore

import gradwire as gw
from gradwire.importing import imported
from gradwire.lab.launch.launch import import_path, launch
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.launch.runner import _following
from gradwire.lab.launch.store_address import unmet
from gradwire.launched import is_launched
from tests.support.waiting import wait_until
from tests.support.warm import program

REPOSITORY = Path(__file__).parents[2]

# Writes what this rank was told, after an all-reduce that proves that the ranks meet.
REPORT = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1000)
dist.all_reduce(total)
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
names += ["OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "GREETING"]
report = {name: os.environ.get(name) for name in names} | {"total": total[0].item()}
with open(f"{sys.argv[1]}/{dist.get_rank()}.json", "w") as file:
    json.dump(report, file)
dist.destroy_process_group()
"""

# Rank 1 fails; rank 0 goes on.
FAIL = """
import os, time
if os.environ["RANK"] == "1":
    raise KeyError("boom")
time.sleep(60)
"""

# Rank 1 is killed; rank 0 waits for its message.
KILLED = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.recv(torch.zeros(1), src=1)
"""

# Starts two ranks that write their process ids and sleep.
LAUNCHER = """
import sys
from gradwire.lab.launch.launch import launch
launch(["-c", sys.argv[1], sys.argv[2]], 2)
"""
SLEEP = """
import os, sys, time
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as file:
    file.write(f"{os.getpid()}.")
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ranks_meet_over_loopback_and_are_told_who_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    launch(["-c", REPORT, str(tmp_path)], 2, env={"GREETING": "hello"}, timeout_s=60)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "GREETING": "hello",
            "total": 2.0,
        }


def test_a_checkout_in_the_working_folder_is_not_taken_for_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels may not be built; ranks import what the launcher does."""
    (tmp_path / "shadow.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RankFailed, match="No module named shadow"):
        launch(["-m", "shadow"], 1, timeout_s=60)
    # nor where a module beside it is named, which has that folder come first here
    (tmp_path / "gradwire").mkdir()
    (tmp_path / "gradwire" / "__init__.py").touch()
    (tmp_path / "shadow.py").write_text("def make(): pass")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    imported("shadow:make")
    assert sys.path[0] == str(tmp_path)
    assert import_path().split(os.pathsep) == [*sys.path[1:], str(tmp_path)]
    launch(["-m", "shadow"], 1, timeout_s=60)


def test_ranks_have_the_import_path_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of results is no other package, and of some folders nothing can be asked, such as another user's."""
    (tmp_path / "gradwire").mkdir()
    path = [str(tmp_path), str(tmp_path / ("long" * 100)), *sys.path[1:]]
    monkeypatch.setattr(sys, "path", path)
    assert import_path().split(os.pathsep) == path


# A rank of the command line, which waits for another one and is asked to end: as it joins, and when it has.
WAITS = """
import os, signal, sys
from threading import Timer
from gradwire.lab.launch.rank_job import meet
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("in order"))
if "alone" in sys.argv:
    os.environ.update(RANK="1", WORLD_SIZE="2")
    Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
with meet("cpu") as peers:
    if peers.rank:
        Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pause()
"""


@pytest.mark.parametrize("alone", [["alone"], []], ids=["joins", "leaves"])
def test_a_rank_that_waits_for_the_others_is_ended_by_a_signal(alone: list[str]) -> None:
    with pytest.raises(RankFailed, match="ended with signal SIGTERM"):
        launch(["-c", WAITS, *alone], 2 - len(alone), timeout_s=60)


def test_ranks_that_did_not_come_are_not_a_store_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistStoreError) as late:
        TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=1))
    said = str(unmet(late.value))
    assert "waited at the store at 127.0.0.1:1 for ranks that did not come: Timed out after" in said
    assert "1/2 clients joined; start all ranks" in said


# Takes the port at which ranks are to meet, before they do.
TAKE = """
import errno, os, socket
with socket.socket() as thief:
    try:
        thief.bind(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    except OSError as error:
        assert error.errno == errno.EADDRINUSE
    else:
        raise AssertionError("the port was free")
"""


def test_the_port_at_which_ranks_meet_is_held_until_they_do() -> None:
    launch(["-c", TAKE], 1, timeout_s=60)


@pytest.mark.parametrize(
    ("program", "exit_code", "message"),
    [
        (FAIL, 1, "rank 1 ended with exit code 1: KeyError: 'boom'"),
        (KILLED, -9, "rank 1 ended with signal SIGKILL"),
    ],
)
def test_the_rank_that_failed_is_named_and_the_others_end(program: str, exit_code: int, message: str) -> None:
    with pytest.raises(RankFailed) as failed:
        launch(["-c", program], 2, timeout_s=60)
    assert (failed.value.rank, failed.value.exit_code) == (1, exit_code)
    assert str(failed.value) == message


def test_exit_code_and_last_words_of_a_rank_are_reported() -> None:
    words = "import sys; print('one', file=sys.stderr); sys.exit('no such folder: data')"
    with pytest.raises(RankFailed) as failed:
        launch(["-c", words], 1)
    assert str(failed.value) == "rank 0 ended with exit code 1: no such folder: data"
    assert failed.value.stderr == "one\nno such folder: data"


def test_what_a_rank_raised_is_its_last_word_though_gloo_aborts_it() -> None:
    words = (
        "import os; os.write(2, b'[rank0]: ValueError: no such plan\\n[rank0]:[W1122 gloo.cpp:1] bye\\n'); os.abort()"
    )
    with pytest.raises(RankFailed) as failed:
        launch(["-c", words], 1)
    assert str(failed.value) == "rank 0 ended with signal SIGABRT: ValueError: no such plan"


SEVERAL_LINES = """
[rank0]: Traceback (most recent call last):
[rank0]:   File "/work/m/rank_job.py", line 172, in run_rank
[rank0]:     job(spec, peers, log)
[rank0]:     ^^^^^^^^^^^^^^^^^^^^^
[rank0]: RuntimeError: the reason
[rank0]: Note: more of it
[rank0]:  In addition, nothing

[rank0]: At:
[rank0]:   /work/m/steps.py(240): _carry_out
[rank0]:   /usr/lib/threading.py(1002): _bootstrap
"""


@pytest.mark.parametrize("raised", ["RuntimeError: the reason", "torch.OutOfMemoryError: the reason", "AssertionError"])
def test_a_reason_of_several_lines_is_reported_by_its_first(raised: str) -> None:
    """It was the last line, which torch adds."""
    stderr = SEVERAL_LINES.replace("RuntimeError: the reason", raised)
    assert str(RankFailed(0, 1, stderr)) == f"rank 0 ended with exit code 1: {raised}"
    chained = stderr + stderr.replace(raised, "ValueError: the last")
    assert str(RankFailed(0, 1, chained)).endswith(": ValueError: the last")
    indented = stderr + "[rank0]:   a: 1\n[rank0]: done: 3\n"
    assert str(RankFailed(0, 1, indented)).endswith(f": {raised}")


def test_ranks_that_take_too_long_are_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="still ran after 5 s"):
        launch(["-c", SLEEP, str(tmp_path)], 2, timeout_s=5)
    pids = [int(path.read_text().rstrip(".")) for path in tmp_path.iterdir()]
    assert [alive(pid) for pid in pids] == [False, False]


def test_number_of_ranks_is_checked() -> None:
    with pytest.raises(ValueError, match="0 ranks on 1 hosts"):
        launch(["-c", "pass"], 0)


def test_signal_handlers_are_left_as_they_were() -> None:
    before = signal.getsignal(signal.SIGTERM)
    launch(["-c", "pass"], 1)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("ignored", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_ends_no_rank(ignored: signal.Signals) -> None:
    """SIGHUP under nohup, SIGINT of what a script starts with `&`."""
    before = signal.signal(ignored, signal.SIG_IGN)
    try:
        launch(["-c", f"import os; os.kill(os.getppid(), {ignored:d})"], 1)
        assert signal.getsignal(ignored) == signal.SIG_IGN
    finally:
        signal.signal(ignored, before)


@pytest.mark.parametrize("kill", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_no_rank_outlives_the_launcher(tmp_path: Path, kill: signal.Signals) -> None:
    command = [sys.executable, "-c", LAUNCHER, SLEEP, str(tmp_path)]
    launcher = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)

    def told() -> list[str]:
        return [path.read_text() for path in tmp_path.iterdir()]

    try:
        assert wait_until(lambda: len(told()) == 2 and all(text.endswith(".") for text in told()), 60)
        pids = [int(text.rstrip(".")) for text in told()]
        launcher.send_signal(kill)
        assert launcher.wait(30) == -kill
    finally:
        launcher.kill()
    assert wait_until(lambda: not any(alive(pid) for pid in pids))


# Leaves at a signal as the command line does, and takes another one while its ranks are being ended.
TWICE = """
import signal, sys
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from gradwire.lab.launch.launch import launch
close = SubprocessContext._close
def interrupted(*arguments, **options):
    signal.raise_signal(signal.SIGTERM)
    close(*arguments, **options)
SubprocessContext._close = interrupted
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
launch(["-c", sys.argv[1], sys.argv[2]], 2)
"""


@pytest.mark.long
def test_a_second_signal_does_not_keep_the_launcher_from_ending(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWICE, SLEEP, str(tmp_path)]
    launcher = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 60)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(30) == 128 + signal.SIGTERM
    finally:
        launcher.kill()


def test_what_rank_0_says_is_shown_and_not_what_others_say(capfd: pytest.CaptureFixture[str]) -> None:
    launch(["-c", "import os, sys; print('rank', os.environ['RANK'], 'µ', file=sys.stderr, end='')"], 2)
    assert capfd.readouterr().err == "rank 0 µ"


@pytest.mark.long
def test_a_signal_ends_the_command_line_in_order(tmp_path: Path) -> None:
    command = ["-m", "gradwire", "bench", "bf16", "--model", "tiny-resnet18", "--steps", "1", "--repeats", "9999"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with program(*command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as bench:
        try:
            assert wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("*/samples.jsonl")), 120)
            bench.terminate()
            told, _ = bench.communicate(timeout=60)
        finally:
            bench.kill()
    assert bench.returncode == 128 + signal.SIGTERM
    assert "nocomm" in told
    assert all(path.name.startswith("torchinductor") for path in tmp_path.iterdir())  # torch's own cache


SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "1234567"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    return environment


@pytest.mark.usefixtures("environment")
def test_a_process_on_its_own_is_not_launched() -> None:
    assert not is_launched()


def test_rank_and_world_size_mean_joined(environment: dict[str, str]) -> None:
    environment["RANK"] = "0"
    assert not is_launched()
    environment["WORLD_SIZE"] = "1"
    assert is_launched()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[07-09,12],login", "gpu07"),
        ("n[3,5]", "n3"),
        ("a-1,b-2", "a-1"),
        ("box", "box"),
    ],
)
def test_a_slurm_step_is_translated(environment: dict[str, str], nodes: str, first: str) -> None:
    environment |= SLURM | {"SLURM_STEP_NODELIST": nodes}
    assert is_launched()
    assert environment["RANK"] == "5"
    assert environment["WORLD_SIZE"] == "8"
    assert environment["LOCAL_RANK"] == "1"
    assert environment["MASTER_ADDR"] == first
    assert 1024 < int(environment["MASTER_PORT"]) < 65536


def test_a_slurm_batch_script_is_not_a_rank(environment: dict[str, str]) -> None:
    environment |= SLURM | {"SLURM_JOB_NODELIST": "gpu[07-09]"}
    assert not is_launched()


def test_a_slurm_steps_only_task_is_not_a_rank(environment: dict[str, str]) -> None:
    environment |= SLURM | {"SLURM_STEP_NODELIST": "box", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert not is_launched()


def test_the_shell_of_salloc_is_not_a_rank(environment: dict[str, str]) -> None:
    """SLURM_NTASKS is the allocation's there; each command took itself for one rank of 8, and waited for the others."""
    environment |= SLURM | {"SLURM_STEP_NODELIST": "box", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert not is_launched()


def test_a_step_of_fewer_tasks_than_its_job_has_as_many_ranks(environment: dict[str, str]) -> None:
    environment |= SLURM | {"SLURM_STEP_NODELIST": "box", "SLURM_STEP_NUM_TASKS": "6"}
    assert is_launched()
    assert environment["WORLD_SIZE"] == "6"


def test_steps_of_slurm_jobs_on_one_host_do_not_meet(environment: dict[str, str]) -> None:
    """Of one job, and of an array's jobs, which are numbered one after another."""
    ports = set()
    for job, step in product(("7", "8", "9"), ("0", "1", "2")):
        environment.clear()
        environment |= SLURM | {"SLURM_STEP_NODELIST": "box", "SLURM_JOB_ID": job, "SLURM_STEP_ID": step}
        assert is_launched()
        ports.add(environment["MASTER_PORT"])
    assert len(ports) == 9


def test_init_joins_the_ranks_of_a_slurm_step(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them was the only rank of a job of its own."""
    environment |= SLURM | {"SLURM_STEP_NODELIST": "gpu[07-09]"}
    joined: list[dict[str, object]] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda **options: joined.append(options))
    gw.init()
    assert joined == [{}]
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"]) == ("5", "8", "gpu07")


def test_lines_of_before_are_not_followed(tmp_path: Path) -> None:
    """A run that goes on has them already."""
    lines, seen = tmp_path / "lines.jsonl", []
    lines.write_text('{"step": 1}\n')
    with _following(lines, seen.append), lines.open("a") as file:
        file.write('{"step": 2}\n')
    assert seen == [{"step": 2}]
