"""A report as one HTML file that needs nothing else, not even a network."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO

from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from gradwire.report.tables import Table

_TEMPLATE = """<!DOCTYPE html>
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
img { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { border-bottom: 2px solid #444; font-weight: 600; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { text-align: left; }
.facts td { text-align: left; white-space: normal; }
.facts td:first-child { color: #555; }
p.note { color: #444; max-width: 52rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for picture, name in pictures %}<img src="data:image/svg+xml;base64,{{ picture }}" alt="{{ name }}">
{% endfor %}
{% for table, note in tables %}<h2>{{ table.title }}</h2>
<div class="wide"><table>
<thead><tr>{% for column in table.columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>
<p class="note">{{ note }}</p>
{% endfor %}
<h2>How it was run</h2>
<table class="facts">
{% for name, value in facts.items() %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}</table>
</body>
</html>
"""


def render(
    title: str,
    pictures: Mapping[str, Figure],
    tables: Sequence[tuple[Table, str]],
    facts: Mapping[str, str],
) -> str:
    """The page's text: pictures by what they show, tables with a note each, and facts about the run."""
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE)
    drawn = [(_svg(picture), name) for name, picture in pictures.items()]
    return template.render(title=title, pictures=drawn, tables=tables, facts=facts)


def _svg(picture: Figure) -> str:
    buffer = BytesIO()
    picture.savefig(buffer, format="svg")
    return b64encode(buffer.getvalue()).decode()
