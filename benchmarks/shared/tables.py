"""Tables in Markdown, and numbers as their cells show them."""

from collections.abc import Iterable, Sequence
from statistics import median

LINKS = {
    "loopback": "loopback", "20mbit": "20 Mbit/s", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s",
}  # fmt: skip
"""Names of links, by what the command line calls them."""


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in [columns, *rows])
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def span(numbers: Iterable[float], form: str = ".1f") -> str:
    """The least and the largest number; one of them if they look the same."""
    found = sorted(numbers)
    ends = dict.fromkeys(format(each, form) for each in (found[0], found[-1]))
    return "–".join(ends)


def middle(numbers: Iterable[float], form: str = ".2f") -> str:
    """The median, and the span in brackets; "" of none."""
    found = list(numbers)
    return f"{format(median(found), form)} ({span(found, form)})" if found else ""
