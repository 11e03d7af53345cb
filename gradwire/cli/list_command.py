"""`gradwire list`: everything there is to choose from, by kind, and one by one."""

from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table as Grid

from gradwire.cli.console import console, mistakes
from gradwire.cli.console import show as show_table
from gradwire.lab.catalogue import CatalogueEntry, catalogue, found
from gradwire.ops.backend import in_use
from gradwire.report import depth


def show(name: str | None) -> None:
    """Prints everything, all of one kind, or one thing in depth. Raises a mistake for an unknown name."""
    kinds = catalogue()
    # everything, in brief
    if name is None:
        with mistakes():
            kernels = in_use()
        for kind, entries in kinds.items():
            _show_kind(kind, entries, brief=True)
        return console().print(f"`gradwire list topk` shows one in depth. Kernels: {kernels}.", highlight=False)
    # one kind, with options and papers
    if name.lower().capitalize() in kinds:
        kind = name.lower().capitalize()
        return _show_kind(kind, kinds[kind], brief=False)
    # one thing, or several of the same name
    with mistakes():
        for kind, entry in found(name):
            _show_one(kind, entry)


def _show_kind(kind: str, entries: list[CatalogueEntry], brief: bool) -> None:
    for family, own in groupby(entries, key=lambda entry: entry.family):
        title = f"{kind}: {family.lower()}" if family else kind
        grid = Grid(title=title, title_justify="left", box=SIMPLE_HEAD, show_header=False)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for entry in own:
            grid.add_row(escape(entry.name), _description(entry, brief))
        console().print(grid)


def _description(entry: CatalogueEntry, brief: bool) -> RenderableType:
    more = [entry.summary] if brief else [entry.summary, entry.defaults, entry.paper]
    return escape("\n".join(filter(None, more)))


def _show_one(kind: str, entry: CatalogueEntry) -> None:
    # name and description
    there = console()
    there.print(f"[bold]{escape(entry.name)}[/bold], one of the {kind.lower()}\n", highlight=False)
    there.print(entry.text, highlight=False, markup=False)
    # paper, options and what it goes with
    grid = Grid(box=None, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in depth.facts(entry).items():
        grid.add_row(name, escape(text))
    there.print("", grid, sep="\n")
    # the bytes that it sends
    if sent := depth.sent(entry):
        show_table(sent)
        there.print(" ".join(depth.SENT_NOTE.split()), highlight=False)
        there.print(f"\nTo time it here: gradwire bench dense {entry.name} --hosts 4", highlight=False)
