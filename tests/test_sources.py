"""The digest of the sources that ranks compare: what changes it, and what does not."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns, make_archive

import pytest
import torch

import gradwire as gw
from gradwire import sources
from gradwire.lab.doctor.facts import facts_here
from gradwire.runtime import agreement
from tests.support.harness import CPU, job, plan_of, slots_of

PACKAGE = Path(gw.__file__).parent


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package as a wheel has it: at another place and time, and without what was compiled."""
    there = tmp_path / "site-packages" / "gradwire"
    copytree(PACKAGE, there, ignore=ignore_patterns("__pycache__", "*.so"))
    for file in there.rglob("*"):
        os.utime(file, (1e9, 1e9))
    return there


def test_it_is_that_of_the_sources_wherever_they_are(installed: Path) -> None:
    assert sources.digest(str(installed)) == sources.digest(str(PACKAGE)) != ""
    assert sources.version() == f"{gw.__version__} (sources {sources.digest(str(PACKAGE))})"


@pytest.mark.parametrize("changed", ["ops/noise.py", "runtime/worker/executor.py", "wire.py", "ops/native/library.py"])
def test_a_changed_source_changes_it(installed: Path, changed: str) -> None:
    (installed / changed).write_text((installed / changed).read_text() + "\n")
    assert sources.digest(str(installed)) != sources.digest(str(PACKAGE))


def test_what_ranks_do_not_compute_by_does_not(installed: Path) -> None:
    for added in ("lab/own.py", "report/own.py", "cli/own.py", "ops/__pycache__/noise.cpython-311.pyc", "ops/own.txt"):
        (installed / added).parent.mkdir(exist_ok=True)
        (installed / added).touch()
    assert sources.digest(str(installed)) == sources.digest(str(PACKAGE))


def test_in_a_zip_it_is_the_version_alone(installed: Path, tmp_path: Path) -> None:
    archive = make_archive(str(tmp_path / "gradwire"), "zip", installed.parent)
    script = "import gradwire.sources as s; print(s.version())"
    told = subprocess.check_output([sys.executable, "-S", "-P", "-c", script], env={"PYTHONPATH": archive}, text=True)
    assert told.split() == [gw.__version__]
    (installed / "wire.py").unlink()
    (installed / "wire.py").symlink_to("nowhere")
    assert sources.digest(str(installed)) == ""


def test_ranks_of_other_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their version was the same."""
    told = iter(["0.2.0 (sources 01234567)", "0.2.0 (sources 89abcdef)"])
    monkeypatch.setattr(agreement, "version", lambda: next(told))
    slots = slots_of({"weight": torch.zeros(4, 4)})
    plan = plan_of(slots, gw.FP32(), gw.NoMemory(), gw.AllReduce())
    says = r"the ranks differ in Gradwire's version: 0.2.0 \(sources .*\) on rank 0, 0.2.0"
    with pytest.raises(ValueError, match=says), job(plan, slots, 2):
        pass


def test_the_doctor_shows_it() -> None:
    assert facts_here(CPU)["gradwire"] == sources.version()
