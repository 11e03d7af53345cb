"""Tables on a terminal: no digit is ever cut. Where there is too little room, a table leaves columns out, those first
that say least; where that is not enough, each row becomes a list."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table as Grid

from gradwire.report.text_table import TextTable

_WORDS_WIDTH = 24
"""Columns of words fold; narrower than this they are hard to read."""


def fitted(table: TextTable, width: int) -> RenderableType:
    """The table in at most `width` columns of text."""
    # whole; then with headings folded; then leaving out one column after another
    spare = [column for column in table.spare if column in table.columns]
    tries = [([], False), *((spare[:count], True) for count in range(len(spare) + 1))]
    for left_out, folded in tries:
        grid = _grid(table, left_out, folded)
        if _needed(grid) <= width:
            return grid
    return _stacked(table)


def _grid(table: TextTable, left_out: Sequence[str], folded: bool) -> Grid:
    caption = f"no room for: {', '.join(left_out)}" if left_out else None
    grid = Grid(
        title=escape(table.title), title_justify="left", box=SIMPLE_HEAD, caption=caption, caption_justify="left"
    )
    # columns that are kept: words may fold, numbers may not
    kept = [index for index, column in enumerate(table.columns) if column not in left_out]
    for index in kept:
        heading, widest = table.columns[index], max((len(row[index]) for row in table.rows), default=0)
        if heading in table.texts:
            grid.add_column(escape(heading), overflow="fold", min_width=min(widest, _WORDS_WIDTH))
            continue
        heading = _folded(heading, widest) if folded else heading
        least = max([widest, *map(len, heading.splitlines())])
        grid.add_column(escape(heading), justify="right" if index else "left", no_wrap=True, min_width=least)
    for row in table.rows:
        grid.add_row(*(escape(row[index]) for index in kept))
    return grid


def _folded(heading: str, width: int) -> str:
    """A heading over as many lines as keep it from widening its column."""
    lines = [""]
    for word in heading.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _stacked(table: TextTable) -> Grid:
    """Two columns, names and figures; rows one after another."""
    grid = Grid(title=escape(table.title), title_justify="left", box=None, show_header=False)
    grid.add_column(justify="left", overflow="fold")
    grid.add_column(justify="left", overflow="fold")
    # for windows that are narrower than the table
    for row in table.rows:
        grid.add_row(f"[bold]{escape(table.columns[0])}", f"[bold]{escape(row[0])}")
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            grid.add_row(f"  {escape(column)}", escape(cell))
    return grid


def _needed(grid: Grid) -> int:
    wide = Console(width=10_000)
    return wide.measure(grid).minimum
