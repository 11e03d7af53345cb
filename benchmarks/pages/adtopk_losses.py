"""The page about ADTopk: losses of rows beside those of top-k, and what encoding costs."""

from statistics import median
from typing import Any

from benchmarks.losses.all_dimension import (
    CELLS,
    DEFAULT,
    IN_CODE_THIN,
    IN_TURN,
    STEPS,
    TASKS,
    figure,
    of,
    over,
    tensors_of,
)
from benchmarks.losses.row_selection import Run
from benchmarks.pages.page import Page, Shown
from benchmarks.pages.published_on_gpu import on_a_gpu, waiting
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import middle, span

Found = list[dict[str, Any]]
ROWS, TURNS, THIN = (CELLS[name] for name in (DEFAULT, IN_TURN, IN_CODE_THIN))
COLUMNS = ("over top-k", "rows", "in turn", "rows over its code's", "delay: rows/top-k")
NOTE = "Held-out loss at 1%, medians of 3 seeds. Its code's top-k is each tensor's. Delay of large elements in steps."


def adtopk() -> Page:
    found = load("all_dimension")["runs"]
    kinds = dict.fromkeys((run["task"], run["steps"]) for run in found)
    rows = [_row(found, *kind, ROWS) for kind in sorted(kinds, key=lambda kind: (kind[1], list(TASKS).index(kind[0])))]
    thin = _row(found, "cnn-sgd", STEPS, THIN)
    encoding = {row["compressor"]: row["encode_ms"] for row in load("selection")["codecs"] if row["n"] > 10_000_000}
    top_k = encoding["TopK(ratio=0.01, value_bits=32)"]
    slower = span(ms / top_k for name, ms in encoding.items() if name.startswith("AllDimension"))
    return Page(
        "adtopk", "ADTopk (HPDC 2024)",
        f"At equal bytes each row's largest elements lose {_medians(found, ROWS, 'text')} to top-k on text, "
        f"{_medians(found, ROWS, 'images')} on images; in turn with top-k (ADTopk-I) {_medians(found, TURNS, 'text')} "
        f"and {_medians(found, TURNS, 'images')}.",
        [
            Shown(["all_dimension", "convergence"], COLUMNS, [*rows, thin, *_longer()], NOTE),
            Shown(["selection"], ["", "published", "measured"], [["encoding", "less", f"{slower}x"]]),
            *on_a_gpu("adtopk"),
        ],
        waiting("adtopk", "gradwire bench --suite adtopk"),
    )  # fmt: skip


def _row(found: Found, task: str, steps: int, run: Run) -> list[str]:
    """A row of the table: of rows, of rows in turn, of rows over its code's top-k, and delays."""

    def changes(run: Run, other: Run) -> list[float]:
        return over(*(of(task, steps, each, found) for each in (run, other)))

    turns = changes(TURNS, TURNS.beside) if run == ROWS else []
    medians = [f"{median(each):+.1%}" if each else "" for each in (turns, changes(run, tensors_of(run)))]
    delays = "/".join(f"{figure('large', of(task, steps, each, found)):.0f}" for each in (run, run.beside))
    name = task if steps == STEPS else f"{task}, {steps} steps"
    return [name if run == ROWS else f"{name}, 0.1%", _percent(changes(run, run.beside)), *medians, delays]


def _medians(found: Found, run: Run, kind: str) -> str:
    """How much more loss than top-k's: the span over the tasks of a kind."""
    tasks = [task for task in TASKS if task.startswith(("lstm", "gpt")) == (kind == "text")]
    changes = [over(*(of(task, STEPS, each, found) for each in (run, run.beside))) for task in tasks]
    return f"{span((100 * median(each) for each in changes if each), '+.1f')}%"


def _longer() -> list[list[str]]:
    """The same of the longer trainings of `convergence.py`."""
    losses = {(run["task"], run["name"], run["seed"]): run["loss"] for run in load("convergence")["runs"]}

    def changes(task: str, name: str) -> list[float]:
        pairs = [[losses[task, f"{each} 1 %", seed] for each in (name, "TopK")] for seed in range(3)]
        return [own / rival - 1 for own, rival in pairs]

    kinds = {"lstm-sgd, 1600 steps": "text", "mlp-sgd, 2000 steps": "images"}
    return [
        [name, _percent(changes(task, "AllDimensionTopK")), f"{median(changes(task, 'Interleaved')):+.1%}", "", ""]
        for name, task in kinds.items()
    ]


def _percent(changes: list[float]) -> str:
    return middle((100 * change for change in changes), "+.1f") + "%"
