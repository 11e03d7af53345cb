"""Generated parts of the site: a page per algorithm, measured rows, and the benchmarks' pages with the
age of each result.

In a page, `<!-- steps 100mbit -->` becomes the step times on that link, `<!-- ladder fidelity -->` the losses and bytes
of that result, `<!-- losses fidelity gpt-adamw -->` all of a task's, and `<!-- answers README.md -->` the first table
of README. A line that is but a link to a Python file, `[FILE](../FILE)`, becomes the code, `[CLASS, in FILE](../FILE)`
that of a class; in the repository it stays a link.
"""

import ast
import re
import sys
from itertools import dropwhile, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gradwire.lab.catalogue import CatalogueEntry, catalogue
from gradwire.report import depth
from gradwire.report.text_table import TextTable

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.losses import fidelity
from benchmarks.pages import document
from benchmarks.shared.provenance import ROOT, load
from benchmarks.shared.tables import markdown as _grid

KINDS = ("Compressors", "Memories", "Communicators", "Controllers")
STEPS = ("steps_100mbit", "steps_1gbit", "steps_4ranks")
RUNGS = {
    "4 bits": "gw.Quantized(4)", "PowerSGD 1/3 in 4 bits": "gw.PowerSGD(1 / 3, bits=4)",
    "PowerSGD 1/6 in 4 bits": "gw.PowerSGD(1 / 6, bits=4)", "top-k 1/16 in 10 bits": "gw.TopK(1 / 16, value_bits=4)",
    "PowerSGD 1/12 in 4 bits": "gw.PowerSGD(1 / 12, bits=4)", "PowerSGD r4": "gw.PowerSGD(4)",
    "top-k 1.25 %": "gw.TopK(0.0125)",
}  # fmt: skip
"""The line of code for each rung of the ladder, by what the results call it; last those in float32."""
TRAINED = {"lstm-sgd": "LSTM, SGD", "gpt-adamw": "GPT, AdamW", "cnn-sgd": "CNN, SGD", "cnn-adamw": "CNN, AdamW"}
_INSERT = re.compile(r"<!-- (\w+) (\S+)(?: ([\w-]+))? -->")
_SOURCE = re.compile(r"^\[(?:(\w+), in )?(\S+\.py)\]\(\.\./\2\)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    kinds = catalogue()
    pages = {f"algorithms/{entry.name}.md": _algorithm(kind, entry) for kind in KINDS for entry in kinds[kind]}
    for path, text in (pages | {"algorithms/index.md": _index(kinds)}).items():
        files.append(File.generated(config, path, content=text))
    config.nav = [_with_algorithms(each, kinds) for each in config.nav or []]
    return files


def _with_algorithms(entry: Any, kinds: dict[str, list[CatalogueEntry]]) -> Any:
    """An entry of the navigation; that of the algorithms with the page of each."""
    if "Algorithms" not in entry:
        return entry
    pages = [{kind: [f"algorithms/{each.name}.md" for each in kinds[kind]]} for kind in KINDS]
    return {"Algorithms": [*entry["Algorithms"], *pages]}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in measured rows and source code; links that leave the site become text."""
    if (made := ROOT / "docs" / page.file.src_uri).parent == document.FOLDER:
        return document.pages(ages=True)[made]
    filled = _INSERT.sub(lambda found: _inserted(*found.groups()), markdown)
    filled = _SOURCE.sub(lambda found: _source(*found.groups()), filled)
    return re.sub(r"\[([^]]+)\]\((?:\.\./)[^)]*\)", r"\1", filled) if page.file.src_uri.count("/") == 0 else filled


def _inserted(what: str, name: str, part: str | None) -> str:
    if what == "steps":
        return _steps(name)
    if what == "ladder":
        return _ladder(name)
    if what == "losses":
        return _losses(name, str(part))
    return _first_table(ROOT / name)


def _source(part: str | None, path: str) -> str:
    """A file's code, or that of one class in it."""
    text = (ROOT / path).read_text()
    return f"```python\n{_class(text, part) if part else text}\n```"


def _class(text: str, name: str) -> str:
    """A class of a module, with its decorators."""
    found = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name)
    first = min(node.lineno for node in (found, *found.decorator_list))
    return "\n".join(text.splitlines()[first - 1 : found.end_lineno])


def _first_table(path: Path) -> str:
    """The first table of a page outside docs/, with links as from a page inside."""
    lines = dropwhile(lambda line: not line.startswith("|"), path.read_text().splitlines())
    return "\n".join(takewhile(lambda line: line.startswith("|"), lines)).replace("](docs/", "](")


def _algorithm(kind: str, entry: CatalogueEntry) -> str:
    facts = [f"- **{name}**: {text}" for name, text in depth.facts(entry).items()]
    parts = [f"# {entry.cls.__name__ if entry.cls else entry.name}", entry.text, "\n".join(facts)]
    parts.append(f"On the command line it is `{entry.name}`; `gradwire list {entry.name}` shows this page.")
    if sent := depth.sent(entry):
        parts += [f"## {sent.title}", _table(sent), " ".join(depth.SENT_NOTE.split())]
    if rows := _measured(entry.name):
        parts += ["## Measured", _RATIO, *rows]
    if entry.cls:
        named = f"{entry.cls.__module__}.{entry.cls.__qualname__}"
        parts.append(f"In Python it is [`gw.{entry.cls.__name__}`](../reference.md#{named}).")
    return "\n\n".join(parts)


def _table(table: TextTable) -> str:
    return _grid(table.columns, table.rows)


def _index(kinds: dict[str, list[CatalogueEntry]]) -> str:
    lines = ["# All algorithms", "One page for each, made from its docstring, its formulas and what was measured."]
    for kind in KINDS:
        lines += [f"## {kind}", "\n".join(f"- [{e.name}]({e.name}.md): {e.summary}" for e in kinds[kind])]
    return "\n\n".join(lines)


_RATIO = "Median milliseconds of a step, and the ratio to no communication in the same run."


def _rows(names: tuple[str, ...] = STEPS) -> list[dict[str, Any]]:
    """What was measured, each row with its file and date."""
    files = {name: load(name) for name in names}
    return [row | {"date": data["date"], "file": name} for name, data in files.items() for row in data["rows"]]


def _shown(ms: dict[str, Any], name: str) -> str:
    return f"{ms[name]['median']:.0f} ({ms[name]['median'] / ms['nocomm']['median']:.1f}x)"


def _measured(name: str) -> list[str]:
    lines = [
        [way, row["link"], str(row["ranks"]), row["model"], _shown(row["ms"], way), row["date"], row["file"]]
        for row in _rows()
        for way in row["ms"]
        if way.partition(":")[0] == name
    ]
    columns = ["configuration", "link", "ranks", "model", "step", "date", "results"]
    return [_table(TextTable("", columns, lines))] if lines else []


def _ladder(name: str) -> str:
    """A row for each rung: the line of code, how many times fewer bytes, and by how much losses end higher."""
    found = load(name)
    runs: list[dict[str, Any]] = found["runs"]
    rows = [[f"`{code}`", *_rung(runs, [run for run in runs if run["name"] == rung])] for rung, code in RUNGS.items()]
    note = (
        "Held-out loss beside dense training's after 300 equal steps, mean (least to most) of three seeds; "
        f"{found['ranks']} ranks, {found['date']}, `benchmarks/results/{name}.json`."
    )
    return f"{_table(TextTable('', ['one line', 'fewer bytes', *TRAINED.values()], rows))}\n\n{note}"


def _losses(name: str, task: str) -> str:
    """A row for each compressor: bytes, and by how much losses end higher, seed by seed."""
    found = load(name)
    steps = next(run["steps"] for run in found["runs"] if run["task"] == task)
    source = f"{found['date']}, {found['commit']}, `benchmarks/results/{name}.json`"
    return f"{fidelity.table(task, steps, found['runs'])}\n\n{source}"


def _rung(runs: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[str]:
    """How many times fewer bytes, and the losses by task."""
    fewer = sorted(run["dense_bytes"] / run["bytes"] for run in own)
    return [" to ".join(dict.fromkeys(f"{times:.3g}x" for times in fewer[:: len(fewer) - 1])), *(
        _loss(runs, [run for run in own if run["task"] == task]) for task in TRAINED
    )]  # fmt: skip


def _loss(runs: list[dict[str, Any]], own: list[dict[str, Any]]) -> str:
    """Against dense of the same task, seed and rate."""

    def key(run: dict[str, Any]) -> tuple[Any, ...]:
        return run["task"], run["seed"], run["lr"]

    dense = {key(run): run["loss"] for run in runs if run["name"] == "dense"}
    gaps = [run["loss"] / dense[key(run)] - 1 for run in own]
    spread = f" ({min(gaps):+.1%} to {max(gaps):+.1%})" if len(gaps) > 1 else ""
    return f"{fmean(gaps):+.1%}{spread}"


def _steps(link: str) -> str:
    """A row for each configuration on this link, each cell what a step of one model took."""
    rows = [row for row in _rows() if row["link"] == link and row["ranks"] == 2]
    models = list(dict.fromkeys(row["model"] for row in rows))
    ways = [way for way in dict.fromkeys(way for row in rows for way in row["ms"]) if way not in ("nocomm", "fp32")]
    lines: list[list[str]] = []
    for way in ways:
        own = {row["model"]: _shown(row["ms"], way) for row in reversed(rows) if way in row["ms"]}
        lines.append([way, *(own.get(model, "-") for model in models)])
    dates = ", ".join(sorted({row["date"] for row in rows}))
    sources = ", ".join(f"`{name}.json`" for name in dict.fromkeys(row["file"] for row in rows))
    note = f"{_RATIO} Two ranks, {link} each, {dates}; `benchmarks/results/`: {sources}."
    return f"{_table(TextTable('', ['configuration', *models], lines))}\n\n{note}"
