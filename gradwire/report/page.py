"""A report as one HTML file that needs nothing else, not even a network."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from gradwire.report.report_files import save
from gradwire.report.text_table import TextTable


@dataclass(frozen=True)
class Picture:
    """A figure with its caption, and the same figure for a narrow screen."""

    caption: str
    shown: str
    """Describes it for readers who cannot see it."""
    figure: Figure
    """As wide as a report."""
    narrow: Figure
    """As narrow as a phone."""


def render(
    title: str,
    verdict: str,
    pictures: Sequence[Picture],
    tables: Sequence[tuple[TextTable, str]],
    facts: Mapping[str, str],
    beside: Mapping[str, str] | None = None,
) -> str:
    """The page's text: the verdict in a sentence, links to files `beside` the page with what they show, pictures,
    tables with a note each, and facts about the run."""
    parts = {"verdict": verdict, "pictures": pictures, "tables": tables, "facts": facts, "beside": beside or {}}
    return filled("page.html", title=title, svg=_svg, **parts)


def filled(template: str, **values: Any) -> str:
    """One of the templates beside this file."""
    loader = PackageLoader("gradwire", "report")
    return (
        Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(template).render(**values)
    )


def _svg(picture: Figure) -> str:
    """The figure as a data: URL, without a background."""
    buffer = BytesIO()
    save(picture, buffer, format="svg", transparent=True)
    return f"data:image/svg+xml;base64,{b64encode(buffer.getvalue()).decode()}"
