"""A report as one HTML file that needs nothing else, not even a network."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from gradwire.report.tables import Table

_TEMPLATE = """{% macro text(table, column) %}{% if column in table.texts %} class="text"{% endif %}{% endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 75rem;
       margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
figure { margin: 1.2rem 0; }
figcaption { font-weight: 600; }
img { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
thead th { border-bottom: 2px solid #444; font-weight: 600; vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 400; text-align: left; }
tbody th, td { vertical-align: top; }
th:first-child { text-align: left; }
.text { text-align: left; white-space: normal; min-width: 9rem; }
.facts td { text-align: left; white-space: normal; }
.facts th { color: #555; }
p.note { color: #444; max-width: 52rem; }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
{% for picture in pictures %}<figure>
<figcaption>{{ picture.caption }}</figcaption>
<img src="data:image/svg+xml;base64,{{ svg(picture.figure) }}" alt="{{ picture.shown }}">
</figure>
{% endfor %}
{% for table, note in tables %}<h2>{{ table.title }}</h2>
<div class="wide"><table>
<thead><tr>
{%- for column in table.columns %}<th scope="col"{{ text(table, column) }}>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr><th scope="row">{{ row[0] }}</th>
{%- for cell in row[1:] %}<td{{ text(table, table.columns[loop.index]) }}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
{% if note %}<p class="note">{{ note }}</p>
{% endif %}{% endfor %}
<h2>How it was run</h2>
<table class="facts">
<tbody>
{% for name, value in facts.items() %}<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}</tbody>
</table>
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Picture:
    """A figure with its caption; `shown` says what is to be seen, for those who cannot see it."""

    caption: str
    shown: str
    figure: Figure


def render(
    title: str,
    pictures: Sequence[Picture],
    tables: Sequence[tuple[Table, str]],
    facts: Mapping[str, str],
) -> str:
    """The page's text: pictures, tables with a note each, and facts about the run."""
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE)
    return template.render(title=title, pictures=pictures, tables=tables, facts=facts, svg=_svg)


def _svg(picture: Figure) -> str:
    buffer = BytesIO()
    picture.savefig(buffer, format="svg")
    return b64encode(buffer.getvalue()).decode()
