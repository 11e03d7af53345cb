"""The trial of the kernels before they are used, and what they are compiled to."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from gradwire.ops import backend
from gradwire.ops.backend import REFERENCE, Backend

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is numpy, which warns of infinities
from gradwire.ops.triton import TRITON, launching, trial  # noqa: E402
from gradwire.ops.triton.trial import TRIALS, tried  # noqa: E402


def test_a_trial_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch):
    """The reference's functions replace each wrong one, and those that its trial is for, and no other."""
    cpu = torch.device("cpu")
    assert tried(cpu) == (TRITON, "")
    wrong: dict[str, Any] = {name: lambda rows, out, layouts: out.zero_() for name in ("sum_blocks", "sum_entries")}
    wrong |= {"orthogonalize": lambda factors: None, "multiply": lambda out, p, q, subtract: None, "draws": 1 / 2}
    monkeypatch.setattr(trial, "TRITON", replace(TRITON, **wrong))
    monkeypatch.setattr(trial, "CODES", trial.CODES[:1])
    found, why = tried(cpu)
    names = ["codes", "codes with noise", "entries", "factors", "products", "draws"]
    assert re.findall(r"([a-z ]+) \(", why.removeprefix("torch computes")) == [f" {name}" for name in names]
    assert "draws ('float' object is not callable)" in why
    tries = {function for name in names for function in TRIALS[name].functions}
    assert found == replace(TRITON, **{function: getattr(REFERENCE, function) for function in tries})


def test_every_function_is_tried():
    own = {each.name for each in fields(Backend) if getattr(TRITON, each.name) is not getattr(REFERENCE, each.name)}
    assert {function for each in TRIALS.values() for function in each.functions} == own


def test_a_trial_that_fails_leaves_no_function_on_its_kernels(monkeypatch: pytest.MonkeyPatch):
    launched: dict[str, set[str]] = defaultdict(set)
    running = list[str]()
    launch = launching.launch

    def noted(kernel: Any, *arguments: Any, **constants: Any) -> None:
        for name in running:
            launched[name].add(kernel.__name__)
        launch(kernel, *arguments, **constants)

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(*arguments: Any, **options: Any) -> Any:
            running.append(name)
            try:
                return call(*arguments, **options)
            finally:
                running.pop()

        return noted_call

    monkeypatch.setattr(launching, "launch", noted)
    own = [each.name for each in fields(Backend) if getattr(TRITON, each.name) is not getattr(REFERENCE, each.name)]
    kernels = replace(TRITON, **{name: noting(name, getattr(TRITON, name)) for name in own})
    x = torch.randn(2, trial.N, generator=torch.Generator().manual_seed(0))
    for name, each in TRIALS.items():
        noting(f"trial of {name}", each.run)(kernels, *x)
    for name, each in TRIALS.items():
        tries = launched[f"trial of {name}"]
        assert {function for function in own if launched[function] & tries} <= set(each.functions), name


def test_torch_computes_where_triton_cannot(monkeypatch: pytest.MonkeyPatch):
    """As without a C compiler, where no kernel can be launched."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backend, "load_linear_algebra", lambda device: None)
    monkeypatch.setattr(launching, "launch", mock.Mock(side_effect=RuntimeError("no compiler")))
    found = backend._on_gpu.__wrapped__(torch.device("cpu"))
    assert found == (None, "Triton cannot be used: RuntimeError: no compiler")


REGISTERS = {
    "add_kernel": 96, "quantise_kernel": 112, "dequantise_kernel": 160, "pack_kernel": 80, "mask_kernel": 80,
    "round_kernel": 48,
    "sample_kernel": 64, "list_kernel": 112, "add_list_kernel": 112, "digits_kernel": 184, "chosen_kernel": 80,
    "write_kernel": 160, "words_kernel": 40, "ends_kernel": 64, "sum_kernel": 96, "pack_levels_kernel": 96,
    "unpack_kernel": 80, "pack_words_kernel": 48, "unpack_words_kernel": 48,
    "cast_kernel": 64, "renew_kernel": 64, "small_kernel": 128, "orthonormal_kernel": 255,
    "project_rows_kernel": 128, "project_columns_kernel": 128, "project_kernel": 255, "product_kernel": 160,
    "draw_kernel": 48, "select_slices_kernel": 128, "add_slices_kernel": 48,
}  # fmt: skip
"""Of a thread, at most, with the Triton that builds of torch bring: a multiprocessor has 65,536, so with 128 it holds
16 warps."""


@pytest.mark.long
def test_they_compile_for_gpus_that_are_not_here_and_spill_nothing():
    """For an H100; `tests/support/compile_kernels.py 80` says the same of an A100."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "compile_kernels.py"), "90"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    builds = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    assert {name.split()[0].strip(":") for name, _, _ in builds} == REGISTERS.keys()
    for name, registers, spilled in builds:
        assert spilled == "0", f"{name} spills {spilled} bytes"
        assert int(registers) <= REGISTERS[name.split()[0].strip(":")], f"{name} takes {registers} registers"
