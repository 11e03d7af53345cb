"""What a person meets at the terminal: tables that fit, help at once, and words for what fails outside the program."""

import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import gradwire
from gradwire.cli import bench_command, console, main, run_setup, train_command
from gradwire.cli.console import progress_bars, show
from gradwire.lab.catalogue import catalogue
from gradwire.lab.configuration import parse_all
from gradwire.lab.experiments.bench_setup import Setup, TimingOptions
from gradwire.lab.experiments.comparison import Comparison
from gradwire.lab.experiments.recipe import Recipe
from gradwire.lab.jobs.bench_job import TimedSteps
from gradwire.lab.launch import runner
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.rank_failed import RankFailed
from gradwire.lab.names import NOCOMM
from gradwire.lab.network import network
from gradwire.report import simulation_report, terminal
from gradwire.report.text_table import TextTable
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.simulate import Outcome
from tests.report.test_report import RUNS
from tests.support.warm import program

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPOSITORY)}


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=ENVIRONMENT | environment, capture_output=True, text=True, check=False)


def printed(table: TextTable, width: int) -> str:
    console = Console(width=width, file=StringIO())
    console.print(terminal.fitted(table, width))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


FIGURES = [["topk:0.01+residual+allgather", *(f"{number}.2345" for number in range(1001, 1009))] for _ in range(3)]
COLUMNS = ["configuration", *(f"figure number {number}" for number in range(8))]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 150, 300])
def test_a_table_fits_cuts_no_digit_and_leaves_out_no_column(width: int) -> None:
    text = printed(TextTable("Training", COLUMNS, FIGURES), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert all(text.count(figure) == 3 for figure in FIGURES[0][1:])
    assert "…" not in text
    assert text.count("Training") == 1


def test_a_table_fits_a_dumb_terminal_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich takes that for 80 columns wide, whatever width it is given, so every table was thought to fit."""
    for name, value in {"TERM": "dumb", "FORCE_COLOR": "1", "COLUMNS": "80"}.items():  # as on a terminal
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LINES", raising=False)
    show(TextTable("Training", COLUMNS, FIGURES))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert all(out.count(figure) == 3 for figure in FIGURES[0][1:])


def test_what_names_a_row_stands_before_each_block_of_columns() -> None:
    lines = printed(TextTable("Training", COLUMNS, FIGURES, keys=2), 80).splitlines()
    rows = [line.split() for line in lines if ".2345" in line]
    assert len(rows) == 3 * 3
    assert all(row[:2] == FIGURES[0][:2] for row in rows)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_process_that_leads_shows_progress(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The empty bars of others wiped it away."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with progress_bars() as progress:
        progress.update(progress.add_task("timing", total=2, note="starting"), advance=1, note="dense")
    assert ("timing" in capsys.readouterr().err) == (rank == 0)
    assert progress.disable == (rank > 0)


@pytest.mark.parametrize("name", ["dense", "topk:0.01+residual+allgather+gravac:10,1000"])
def test_progress_on_a_narrow_terminal_cuts_names_and_no_figures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with progress_bars() as progress:
        progress.update(progress.add_task(name, total=3000, note="loss 2.190"), completed=1500)
    shown = capsys.readouterr().err
    assert all(figure in shown for figure in ("1500/3000", "0:00:00 left -:--:--", "2.190"))


def test_a_terminal_is_told_that_torch_is_being_loaded() -> None:
    """For seconds nothing was there. It is wiped away, and a file has none of it."""
    terminal, errors = os.openpty()
    command = [sys.executable, "-m", "gradwire", "list", "residual"]
    out = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors, text=True, check=True).stdout
    os.close(errors)
    said = os.read(terminal, 1000).decode()
    os.close(terminal)
    assert said.startswith("loading torch")
    assert said.endswith("\r")
    assert said.rpartition("\r")[0].rpartition("\r")[2].isspace()
    assert "loading" not in out
    assert "loading" not in python("-m", "gradwire", "list", "residual").stderr


def test_help_is_whole_in_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("...") == out.count("[ARGS]...") == 1
    assert "Predict a job's step time on clusters that you do not have, from its profile." in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_a_piped_simulation_is_whole_with_its_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    ways = ["best plan", "FP32", "RandomK(ratio=0.01)", "DGC(ratio=0.01)", "OneBit(block=4096)", "EFSignSGD(block=256)"]
    cluster = Cluster(8, 1.25e8)
    show(
        simulation_report.table([Outcome(cluster, way, 1.337, 0.048, "4 groups", 1e6, efficiency=0.5) for way in ways])
    )
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert all(way in out for way in ways)
    assert out.count("1337 (4 %)") == len(ways)


@pytest.mark.long
def test_an_output_in_ascii_is_shown_in_ascii() -> None:
    finished = python("-m", "gradwire", "list", "powersgd", PYTHONIOENCODING="ascii")
    assert finished.returncode == 0, finished.stderr
    assert "P = Q M^T" in finished.stdout


def test_help_and_version_load_neither_torch_nor_the_lab_s_libraries() -> None:
    script = """
import sys
from gradwire.cli import main
assert main(sys.argv[1:]) == 0
loaded = {"torch", "numpy", "matplotlib", "rich", "jinja2"} & sys.modules.keys()
assert not loaded, loaded
"""
    for arguments in (["--help"], ["-h"], ["--version"], ["train", "--help"], ["bench", "-h"], ["list", "-h"]):
        finished = python("-c", script, *arguments)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout


def test_a_mistake_in_an_argument_loads_no_torch() -> None:
    script = """
import sys
from gradwire.cli import main
for arguments in sys.argv[1:]:
    assert main(arguments.split()) == 2, arguments
assert "torch" not in sys.modules
"""
    mistakes = {
        "bench topkk": "there is no compressor 'topkk': did you mean topk?",
        "train localsteps:30+powersdg:4": "did you mean powersgd?",
        "train topk+resid": "there is no memory, communicator or controller 'resid': did you mean residual?",
        "bench topk --controller gravacc": "there is no controller 'gravacc': did you mean gravac?",
        "train dense --link 1foo": "--link': '1foo' is not a link",
        "plan --device tpu": "--device': device is cpu or cuda, not 'tpu'",
        "train dense --task digit": "there is no task 'digit': did you mean digits?",
        "plan --task lmm": "did you mean lm?",
        "train dense --model bert-base": "'bert-base' names no function: write module:name",
        "train --preset gravac-lst": "there is no preset 'gravac-lst': did you mean gravac-lstm?",
        "train --suite gravak": "there is no suite 'gravak': did you mean gravac?",
        "bench --suite acpsg": "there is no suite 'acpsg': did you mean acpsgd?",
        "bench dense --model gpt": "there is no model 'gpt': did you mean gpt2?",
        "doctor --device tpu": "--device': device is cpu or cuda, not 'tpu'",
        "simulate resnet50 --link 1gbit,2": "'2' is not a link",
        "bench dense --play=": "--play is empty",
        "train dense --stepps 3": "No such option",
        "trian dense": "No such command",
    }
    finished = python("-c", script, *mistakes)
    assert finished.returncode == 0, finished.stderr
    for line, message in zip(finished.stderr.splitlines(), mistakes.values(), strict=True):
        assert line.startswith("gradwire: ")
        assert message in line


def test_an_output_that_is_closed_is_no_error(tmp_path: Path) -> None:
    """The first file that was opened got its number; or there was no `isatty`."""
    (tmp_path / "own.py").write_text(OWN_LIST)
    for closed in (">&-", "<&- >&- 2>&-"):
        command = ["bash", "-c", f'"$0" "$1" {closed}', sys.executable, str(tmp_path / "own.py")]
        finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["simulate", "bench", "train"])
def test_figures_are_kept_where_the_output_is_closed_while_they_are_shown(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Piped to `head`, the figures of hours went without a report."""

    def closed(*shown: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(console, "show", closed)
    if command == "simulate":
        assert main(["simulate", "resnet50", "--ranks", "8", "--link", "25gbit", "--out", str(tmp_path)]) == 1
    elif command == "bench":
        setup, samples = Setup(model="tiny-resnet18", ranks=2), [TimedSteps(NOCOMM, 0, [1.0], RUNS[0].last.totals)]
        with pytest.raises(BrokenPipeError):
            bench_command._show_setup(setup, LabCluster(2), TimingOptions(1, 1), tmp_path / "report.json", samples, "")
    else:
        comparison = Comparison(
            configurations=parse_all(["dense"]), task="digits", options=[], ranks=2, recipe=Recipe()
        )
        with pytest.raises(BrokenPipeError):
            train_command._report(comparison, LabCluster(2), tmp_path, RUNS)
    assert [*tmp_path.rglob("report.*")]


def test_what_is_shown_is_text_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show("topk:0.01;*.[qkv]_proj.*=fp32 is the fastest", None, "")
    assert capsys.readouterr().out == "topk:0.01;*.[qkv]_proj.*=fp32 is the fastest\n"


OWN_LIST = """
import os, subprocess, sys
from gradwire.cli import main
code = main(["list", "residual"])
with open(__file__) as first:
    assert first.fileno() > 2
child = [sys.executable, "-c", "import sys; assert None not in (sys.stdin, sys.stdout, sys.stderr)"]
sys.exit(code or subprocess.call(child))
"""


@pytest.mark.parametrize("command", ["train --task digits --data", "simulate resnet50 --out", "list"])
def test_a_name_that_is_not_text_is_refused_before_the_work(command: str) -> None:
    """Reports are UTF-8: the training ended, and no report could be written."""
    latin = os.fsencode("caf") + b"\xe9"
    words = [sys.executable, "-m", "gradwire", *command.split(), latin]
    finished = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.startswith("gradwire: caf\\xe9 is not UTF-8")
    assert finished.stderr.count("\n") == 1


def test_python_m_gradwire_is_the_command() -> None:
    finished = python("-m", "gradwire", "--version")
    assert finished.stdout.startswith(f"gradwire {gradwire.__version__}, torch 2.")


@pytest.mark.parametrize("package", ["typer", "rich", pytest.param("matplotlib", marks=pytest.mark.long)])
def test_without_the_extra_it_says_what_to_install(package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None\nfrom gradwire.cli import main; sys.exit(main(sys.argv[1:]))"
    finished = python("-c", script, "simulate", "resnet50")
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"gradwire {gradwire.__version__}: the command line needs {package}")
    assert finished.stderr.endswith("pip install 'gradwire[lab]'\n")


COMPLETING = """
import atexit, sys
from gradwire.cli import main
atexit.register(lambda: print("torch" in sys.modules))
sys.argv = ["gradwire"]
main()
"""


def completed(words: str) -> set[str]:
    environment = {"_GRADWIRE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    *found, loads_torch = python("-c", COMPLETING, **environment).stdout.split()
    assert loads_torch == "False", words
    return set(found)


def test_the_shell_completes_commands_options_and_configurations_without_torch() -> None:
    assert {"train", "bench", "list", "plan", "simulate", "demo"} <= completed("gradwire ")
    assert "--controller" in completed("gradwire train --c")
    assert completed("gradwire bench powersgd+res") == {"powersgd+residual"}
    assert completed("gradwire train localsteps+topk+allg") == {"localsteps+topk+allgather"}
    assert completed("gradwire bench --controller gr") == {"gravac"}
    assert "digits" in completed("gradwire train --task d")


@pytest.mark.parametrize("width", ["80", "60"])
def test_lists_fit_the_terminal(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    entries = [entry for own in catalogue().values() for entry in own]
    for arguments in ([], ["compressors"], *([entry.name] for entry in entries)):
        assert main(["list", *arguments]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= int(width)
        assert "…" not in out


def test_one_compressor_in_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "TopK"]) == 0
    out = capsys.readouterr().out
    assert "https://arxiv.org/abs/1704.05021" in out
    assert "ratio=0.01" in out
    assert "residual; accepts dgcmemory, nomemory" in out
    assert "residual: 8 bytes for each number of the gradient" in " ".join(out.split())
    assert "53.2 (78.9×)" in out  # 10,485 of 1024 x 1024 elements: 4 bytes and 8.56 bits each, one payload
    assert main(["list", "Interleaved"]) == 0
    assert "57.3 (73.2×)" in capsys.readouterr().out  # the mean of TopK's 53.2 and AllDimensionTopK's 61.4


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 0

    monkeypatch.setattr(run_setup, "disk_usage", lambda path: Full)
    failure = RankFailed(0, 1, "unexpected pos 64 vs 0")  # what torch.save says then
    told = pytest.raises(OSError, match=f"no space is left on the disk of {tmp_path}: rank 0 ended")
    with told, run_setup.writing_to(tmp_path / "run"):
        raise failure


@pytest.mark.long
@pytest.mark.usefixtures("forked_ranks")
def test_a_file_on_a_full_disk_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "tiny-resnet18", "--steps", "1", "--repeats", "1", "--json", "/dev/full"]
    assert main(["bench", "nocomm", *options]) == 1
    assert "gradwire: no space is left on the disk of /dev/full" in capsys.readouterr().err


def test_what_forbids_namespaces_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in network._SETTINGS:
        path = tmp_path.joinpath(*setting.split("."))
        path.parent.mkdir(exist_ok=True)
        path.write_text("1\n" if "unprivileged_userns_clone" in setting or "max" in setting else "0\n")
    monkeypatch.setattr(network, "Path", lambda first, *more: tmp_path.joinpath(*more))
    assert network._forbidden().startswith("it needs root or user namespaces")
    (tmp_path / "kernel" / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    assert "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0" in network._forbidden()


def test_a_plan_that_was_stopped_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be made of the job's own files."""

    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "launch", stopped)
    assert main(["plan", "--task", "digits", "--out", str(tmp_path)]) == 130
    assert not [*tmp_path.iterdir()]


@pytest.mark.long
def test_ctrl_c_says_what_there_is(tmp_path: Path) -> None:
    command = ["-m", "gradwire", "train", "dense", "--task", "digits", "--steps", "100000", "--out", str(tmp_path)]
    with program(*command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr
        first = process.stderr.readline()
        assert first.startswith(f"writing to {tmp_path}/")
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=200)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "stopped; nothing was measured yet" in err
    assert "Traceback" not in out + err
