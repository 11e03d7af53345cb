"""The picture of the site's first page, drawn from benchmarks/results/: step times as bars, each a mean over models.

It is 400 pixels wide, so that its text can be read on a telephone."""

from pathlib import Path
from statistics import fmean

from benchmarks.shared.provenance import ROOT, load

LINKS = {"steps_100mbit": "100 Mbit/s", "steps_1gbit": "1 Gbit/s"}
WAYS = {
    "ddp": "DDP",
    "quantized:4": "4 bits",
    "powersgd:0.16667,bits=4": "PowerSGD 1/6, 4 bits",
    "acpsgd:4": "ACPSGD 4",
}
"""Names of configurations, in the results and in the picture."""
COLOURS = {
    "light": {"text": "#1c2530", "dense": "#8a94a0", "compressed": "#2f6fbf"},
    "dark": {"text": "#e6ebf1", "dense": "#8a94a0", "compressed": "#6aa6ee"},
}
WIDTH, ROW, NAMES, LONGEST = 400, 22, 168, 176
"""Pixels: of the picture, from one bar to the next, of the column of names, of the longest bar."""


def pictures() -> dict[Path, str]:
    """The text of the picture for light pages, and for dark ones."""
    return {ROOT / "docs" / f"steps-{scheme}.svg": _picture(colours) for scheme, colours in COLOURS.items()}


def _picture(colours: dict[str, str]) -> str:
    times = {link: _times(name) for name, link in LINKS.items()}
    longest = max(max(own.values()) for own in times.values())
    lines, y = [], 18
    for link, own in times.items():
        lines.append(f'<text x="0" y="{y}" font-weight="bold">A step over {link}; 1 is computation alone</text>')
        for way, taken in own.items():
            y += ROW
            colour = colours["dense" if way == "ddp" else "compressed"]
            lines += _bar(WAYS[way], taken, LONGEST * taken / longest, y, colour)
        y += ROW + 14
    title = "How long a step takes, as a multiple of its computation: DDP and three compressors, on two links"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - ROW}" role="img" aria-labelledby="title"'
    style = f'font-family="system-ui, sans-serif" font-size="14" fill="{colours["text"]}">'
    return "\n".join([f"{head} {style}", f'<title id="title">{title}</title>', *lines, "</svg>", ""])


def _bar(name: str, taken: float, length: float, y: int, colour: str) -> list[str]:
    """A name, a bar and its number, on the line at `y`."""
    return [
        f'<text x="{NAMES - 8}" y="{y}" text-anchor="end">{name}</text>',
        f'<rect x="{NAMES}" y="{y - 12}" width="{length:.1f}" height="15" fill="{colour}"/>',
        f'<text x="{NAMES + length + 6:.1f}" y="{y}">{taken:.1f}</text>',
    ]


def _times(name: str) -> dict[str, float]:
    """How many times as long as without communication a step takes, by configuration."""
    rows = [row["ms"] for row in load(name)["rows"]]
    return {way: fmean(ms[way]["median"] / ms["nocomm"]["median"] for ms in rows) for way in WAYS}
