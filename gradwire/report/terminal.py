"""Tables on a terminal: no digit is ever cut, and no column left out. Where there is too little room, a table is cut
into blocks of columns, one below the other; where that is not enough, each row becomes a list."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table as Grid

from gradwire.report.text_table import TextTable

_WORDS_WIDTH = 24
"""Columns of words fold; narrower than this they are hard to read."""


def fitted(table: TextTable, width: int) -> RenderableType:
    """The table in at most `width` columns of text."""
    every = range(table.keys, len(table.columns))
    # whole; then with headings folded; then in blocks
    for folded in (False, True):
        if _needed(grid := _grid(table, every, folded)) <= width:
            return grid
    blocks = [_grid(table, columns, folded=True, title=not index) for index, columns in enumerate(_cut(table, width))]
    return Group(*blocks) if all(_needed(block) <= width for block in blocks) else _stacked(table)


def _cut(table: TextTable, width: int) -> list[list[int]]:
    """The columns of each block: as many as fit, one at least."""
    blocks: list[list[int]] = [[]]
    for column in range(table.keys, len(table.columns)):
        if blocks[-1] and _needed(_grid(table, [*blocks[-1], column], folded=True)) > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _grid(table: TextTable, columns: Sequence[int], folded: bool, title: bool = True) -> Grid:
    """Some of the columns, behind those that name the row."""
    grid = Grid(title=escape(table.title) if title else None, title_justify="left", box=SIMPLE_HEAD)
    # words may fold, numbers may not
    shown = [*range(table.keys), *columns]
    for index in shown:
        heading, widest = table.columns[index], max((len(row[index]) for row in table.rows), default=0)
        if heading in table.texts:
            grid.add_column(escape(heading), overflow="fold", min_width=min(widest, _WORDS_WIDTH))
            continue
        heading = _folded(heading, widest) if folded else heading
        least = max([widest, *map(len, heading.splitlines())])
        grid.add_column(escape(heading), justify="right" if index else "left", no_wrap=True, min_width=least)
    for row in table.rows:
        grid.add_row(*(escape(row[index]) for index in shown))
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
    wide = Console(width=10_000, height=25)  # without a height, a dumb terminal has 80 columns
    return wide.measure(grid).minimum
