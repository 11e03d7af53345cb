"""Calls and commands of docs/published.md on one rank: `python -m tests.processes.published FILE` runs those that the
file lists, calls as text and commands as lists of words, on small models."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.cli import bench_command, main, scheduler_commands, train_command
from gradwire.lab.experiments.bench_setup import Setup
from gradwire.lab.experiments.suites import SuiteRow
from gradwire.lab.experiments.training import Training
from gradwire.lab.launch.rank_job import Peers, meet
from gradwire.lab.launch.runner import _Joined

OWN = "tests/processes/published.py:make"


def make() -> tuple[nn.Module, Callable[[int, int], Iterator[torch.Tensor]], Callable[..., torch.Tensor]]:
    """A small model of the user's own, for `--model`."""

    def batches(rank: int, world: int) -> Iterator[torch.Tensor]:
        return (torch.randn(4, 40) for _ in range(99))

    return network(), batches, lambda model, batch: model(batch).square().mean()


def network() -> nn.Module:
    torch.manual_seed(0)
    inner, last = nn.Linear(60, 30, bias=False), nn.Linear(30, 3, bias=False)
    return nn.Sequential(nn.Linear(40, 60), nn.ReLU(), inner, nn.ReLU(), last)


def call(expression: str) -> None:
    """Evaluates a call, and trains two steps where it returns a handle or an optimizer."""
    ddp = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(ddp.module.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    names = {"gw": gw, "torch": torch, "ddp": ddp, "optimizer": optimizer, "scheduler": scheduler}
    made: Any = eval(expression, names)
    if isinstance(made, gw.Handle):
        train(ddp, optimizer, made)
    elif hasattr(made, "handle"):
        train(ddp.module, made, made.handle)


def train(model: nn.Module, optimizer: Any, handle: gw.Handle) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 40)).square().mean().backward()
        optimizer.step()
    assert handle.stats().steps == 2
    handle.detach()


def command(arguments: list[str], peers: Peers, patch: pytest.MonkeyPatch) -> None:
    """Runs a command on the ranks that there are; it writes no pictures."""

    @contextmanager
    def joined(cluster: object) -> Iterator[_Joined]:
        yield _Joined(peers)

    for module in (bench_command, train_command, scheduler_commands):
        patch.setattr(module, "runner", joined)
    for report in (bench_command.suites, train_command.report, train_command.training_suite_report):
        patch.setattr(report, "write", lambda *facts: [])
    # of a suite two rows are enough, and one training, both small: tests/lab looks at all
    timed, trained = bench_command.rows_of, train_command.suite_rows
    patch.setattr(bench_command, "rows_of", lambda *wanted: [small(row) for row in timed(*wanted)[:2]])
    patch.setattr(train_command, "suite_rows", lambda *wanted: [small_training(row) for row in trained(*wanted)[:1]])
    assert main(arguments) == 0, arguments


def small(row: SuiteRow) -> SuiteRow:
    return replace(row, setup=Setup(model=OWN, ranks=2))


def small_training(row: Training) -> Training:
    width = 64 if "masked" in row.task else 4
    return row.altered(options=[f"width={width}", "batch=4"], configurations=row.configurations[:2])


def run(rows: list[str | list[str]]) -> None:
    with meet("cpu") as peers:
        for row in rows:
            try:
                with pytest.MonkeyPatch.context() as patch:
                    call(row) if isinstance(row, str) else command(row, peers, patch)
            except BaseException as error:
                error.add_note(f"in {row}")
                raise


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
