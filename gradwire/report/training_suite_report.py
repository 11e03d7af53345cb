"""The report of a suite of trainings, beside each one's own folder: one table of their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.lab.configuration import parse
from gradwire.lab.results import Run
from gradwire.report import page
from gradwire.report.report_files import write_json, write_text
from gradwire.report.text_table import TextTable, diverged, figure, score, times
from gradwire.report.verdict import as_good
from gradwire.report.words import in_words

_NOTE = """Seconds to dense: of training until the held-out metric was first within 0.5 points of accuracy, or 1 % of
loss, of what the dense run ended with, as seen at some 25 evaluations in a run. Fewer elements: of what adapts, by the
last decision. Fewer bytes: than plain DDP. Bytes are the mean over the ranks; for plain DDP they are those of its ring
all-reduce."""


@dataclass(frozen=True)
class TrainedTask:
    """One task's runs, of which the first is dense; `model` and `metric` are the task's."""

    task: str
    model: str
    metric: str
    runs: Sequence[Run]

    def seconds_to_dense(self, run: Run) -> float | None:
        """Seconds until `run` first reached the dense run's final figure; None where it never did, and where the dense
        run diverged."""
        if diverged(self.runs[0]):
            return None
        dense = self._metric(self.runs[0].last.held_out)
        reached = (r.wall_s for r in run.evaluated if as_good(dense, self._metric(r.held_out), self.metric))
        return next(reached, None)

    def rows(self) -> list[dict[str, Any]]:
        """Held-out figure, times and bytes of each run."""
        return [
            {
                "task": self.task,
                "model": self.model,
                "configuration": run.configuration,
                "metric": self.metric,
                "held_out": self._metric(run.last.held_out),
                "seconds_to_dense": self.seconds_to_dense(run),
                "seconds": run.last.wall_s,
                "elements_factor": _elements_factor(run),
                "wire_bytes": run.last.totals.wire_bytes,
                "bytes_factor": run.last.totals.ratio,
            }
            for run in self.runs
        ]

    def _metric(self, held_out: dict[str, float] | None) -> float:
        assert held_out
        return held_out[self.metric]


def _elements_factor(run: Run) -> float | None:
    decided = [decision["factor"] for decision in run.decisions if decision["factor"]]
    if decided:
        return decided[-1]
    configuration = parse(run.configuration)
    ratio = getattr(configuration.compressor, "ratio", None) if configuration.controller is None else None
    return 1 / ratio if ratio else None


def table(name: str, trained: Sequence[TrainedTask]) -> TextTable:
    """One line for every run."""
    columns = ["task", "model", "configuration", "held-out", "s to dense", "s to finish"]
    columns += ["fewer elements", "MB per rank", "fewer bytes"]
    rows = []
    for dense, run, row in ((one.runs[0], *each) for one in trained for each in zip(one.runs, one.rows(), strict=True)):
        ended = "diverged" if diverged(run) else f"{row['metric']} {score(row['held_out'])}"
        # seconds until it was as good as the uncompressed run ever was
        to_dense, fewer = row["seconds_to_dense"], row["elements_factor"]
        never = "-" if diverged(dense) else "never"
        seconds = [never if to_dense is None else figure(to_dense), figure(row["seconds"])]
        sent = [times(fewer) if fewer else "-", figure(row["wire_bytes"] / 1e6), times(row["bytes_factor"])]
        rows.append([row["task"], row["model"], row["configuration"], ended, *seconds, *sent])
    return TextTable(f"Suite {name}", columns, rows, texts=("model", "configuration"))


def write(folder: Path, name: str, trained: Sequence[TrainedTask], facts: Mapping[str, Any]) -> list[Path]:
    """Writes report.html and suite.json; returns their paths."""
    whole = table(name, trained)
    report = page.render(f"{whole.title}: what was reached", _verdict(trained), [], [(whole, _NOTE)], in_words(facts))
    write_text(folder / "report.html", report)
    write_json(folder / "suite.json", {"suite": name, **facts, "rows": [row for one in trained for row in one.rows()]})
    return [folder / "report.html", folder / "suite.json"]


def _verdict(trained: Sequence[TrainedTask]) -> str:
    """The first run at dense's final figure, task by task."""
    return " ".join(_soonest(one) for one in trained)


def _soonest(one: TrainedTask) -> str:
    if diverged(one.runs[0]):
        return f"{one.task}: {one.runs[0].configuration} diverged: there is nothing to compare with."
    seconds = {run.configuration: one.seconds_to_dense(run) for run in one.runs}
    dense_s = seconds.pop(one.runs[0].configuration) or one.runs[0].last.wall_s
    reached = {name: taken_s for name, taken_s in seconds.items() if taken_s is not None}
    if not reached:
        return f"{one.task}: nothing else reached dense's {one.metric}."
    name = min(reached, key=lambda each: reached[each])
    return f"{one.task}: {name} was where dense ended {times(dense_s / reached[name])} as fast."
