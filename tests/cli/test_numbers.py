"""Every number that a command takes, where it cannot be or is huge: one line, or the work begins."""

from pathlib import Path
from typing import Any

import pytest
import typer

from gradwire.cli import (
    bench_command,
    check_command,
    doctor_command,
    main,
    scheduler_commands,
    soak_command,
    train_command,
)
from gradwire.cli.commands import app

ARGUMENTS = {
    "train": ["topk"],
    "bench": ["topk"],
    "plan": [],
    "simulate": ["resnet50"],
    "soak": [],
    "doctor": ["--device", "cpu"],
}
PLAYED = ("gpus_per_host", "latency_us", "jitter", "slow_rank", "training_steps", "price")
WRONG = ("nan", "inf", "-1", "0")
HUGE = str(10**400)


class Begun(Exception):
    """What would take long begins."""


def begin(*arguments: object, **options: object) -> Any:
    raise Begun


def numbers(command: str) -> list[Any]:
    commands: Any = typer.main.get_command(app)
    described = [(each, getattr(each, "type_descriptor", None)) for each in commands.commands[command].params]
    return [each for each, kind in described if kind and kind.annotation in (int, float)]


@pytest.fixture(autouse=True)
def begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing runs: what would take long raises Begun."""
    for module in (bench_command, check_command, scheduler_commands, train_command):
        monkeypatch.setattr(module, "runner", begin)
    monkeypatch.setattr(scheduler_commands, "simulate", begin)
    monkeypatch.setattr(doctor_command, "launch", begin)
    monkeypatch.setattr(soak_command, "soaking", begin)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", ARGUMENTS)
def test_numbers_that_cannot_be_get_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers(command)
    for option in numbers(command):
        more = ["--play", "64@25gbit"] if option.name in PLAYED and command in ("bench", "plan") else []
        more += ["--training-steps", "10"] if option.name == "price" else []
        for value in (*WRONG, HUGE):
            case = f"{option.opts[-1]} {value}"
            capsys.readouterr()
            try:
                code = main([command, *ARGUMENTS[command], *more, option.opts[-1], value])
            except Begun:
                assert value not in ("nan", "inf", "-1"), case
                assert value != HUGE or option.name == "seed", case
                continue
            error = capsys.readouterr().err
            assert (code, error.count("\n"), error[:9]) == (2, 1, "gradwire:"), f"{case}: {error}"
            assert "Overflow" not in error, case


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "topk", "--shard", "0"], "Invalid value for '--shard'"),
        (["doctor", "--device", "cuda"], "this machine has no GPU; leave out --device cuda"),
        (["soak", "--minutes", "0"], "--minutes"),
        (["bench", "topk", "--svg"], "only --suite and --play write a folder: leave --out, --pdf and --svg out"),
        (["simulate", "resnet50", "--inside", "1gbit"], "a host of 1 GPU has no links inside: leave --inside out, or"),
        (["simulate", "resnet50", "--ranks", "8", "--gpus-per-host", "8", "--latency-us", "9"], "8 ranks send nothing"),
        (["bench", "topk", "--steps", "1" + 23 * "0"], "--steps 100000000000000000000000 is too large: give 1,000,000"),
        (["bench", "topk", "--model", "resnet18", "--batch", "1000000000"], "there is no memory for such sizes: give"),
        (["train", "topk", "--set", f"width={10**12}"], "there is no memory for such sizes: give smaller ones"),
        (["train", "topk", "--set", f"width={10**23}"], "width must be at most 1,000,000,000,000, got 1"),
        (["train", "topk", "--lr", "1e308"], "lr=1e+308 is no learning rate: it is above 0 and below 1e+38"),
        (["train", "topk", "--weight-decay", "1e308"], "weight_decay=1e+308 is not from 0 to below 1e+38"),
        (["soak", "--minutes", "nan"], "nan minutes are no time: give a number above 0, such as --minutes 20"),
        (["soak", "--hosts", "300"], "Invalid value for '--hosts'"),
        (["soak", "--link", "500kbit"], "a 500kbit link is not faster than 1mbit, to which the fault slow sets it"),
    ],
)  # fmt: skip
def test_the_mistake_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
