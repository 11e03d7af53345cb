"""Arguments that several commands share, and what becomes of them."""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gradwire.lab.join import joined
from gradwire.lab.link import LOOPBACK, link_of
from gradwire.lab.runner import Place

Hosts = Annotated[int | None, typer.Option(help="ranks to start, each with a link of its own; by default 2")]
Rate = Annotated[str | None, typer.Option("--link", help="emulated link, such as 100mbit; else loopback")]
Device = Annotated[str, typer.Option(help="cpu, or cuda with one GPU per rank")]
Seed = Annotated[int, typer.Option(help="of the model, the order of the data and the compressors")]
Options = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="option of the task; see `list`")
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", "--data", help="where the task's files are; a suite's: its tasks' folders"),
]
TaskName = Annotated[str | None, typer.Option(help="what to train on, by default lm; see `list`")]
Out = Annotated[Path, typer.Option(help="where the run's folder goes")]


def ranks_of(hosts: int | None) -> int:
    """How many ranks the user means: those that run already, or by default 2."""
    return hosts if hosts is not None else int(os.environ["WORLD_SIZE"]) if joined() else 2


def place_of(hosts: int | None, link: str | None, device: str) -> Place:
    """Where the ranks run. Raises ValueError for a place that cannot be."""
    return Place(ranks_of(hosts), link_of(link or LOOPBACK), device)


def run_folder(out: Path, name: str, leads: bool = True) -> Path:
    """A folder of a run's own, named by the time. Where this process leads it is made at once: that it cannot be
    written is to be known before hours of measuring, not after."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    folder, number = out / stem, 1
    if not leads:
        return folder
    out.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another run began in the same second
            number += 1
            folder = out / f"{stem}-{number}"
