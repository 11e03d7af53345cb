"""Training curves for TensorBoard."""

import time
from pathlib import Path
from typing import Self

from torch.utils.tensorboard.writer import SummaryWriter

from gradwire.lab.results import Record


class Scalars:
    """Writes records as TensorBoard scalars into `folder`; at times of training alone. A resumed run has
    records up to step `last` there already, and those after it come again."""

    def __init__(self, folder: Path, last: int) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=last + 1)
        self._start_s = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def add(self, record: Record) -> None:
        held_out = {f"held_out/{name}": value for name, value in (record.held_out or {}).items()}
        sent = {"sent_per_rank/MB": record.totals.wire_bytes / 1e6}
        for tag, value in ({"train/loss": record.loss} | held_out | sent).items():
            self._writer.add_scalar(tag, value, record.step, walltime=self._start_s + record.wall_s)
