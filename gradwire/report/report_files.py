"""Files of a report: pictures, UTF-8 in any locale, and strict JSON."""

import json
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any

BESIDE: set[str] = set()
"""Formats, such as "pdf", in which a picture is written beside PNG; the command line's options set them."""


def write_picture(figure: Any, path: Path) -> None:
    """Writes a figure of matplotlib's as PNG, and beside it in the other formats that are wanted."""
    save(figure, path, dpi=130)
    for suffix in sorted(BESIDE):
        save(figure, path.with_suffix(f".{suffix}"))


def save(figure: Any, to: Path | BytesIO, **options: Any) -> None:
    """`figure.savefig`, which arranges the figure's panels the first time only: that takes two thirds of its time."""
    figure.savefig(to, **options)
    figure.set_layout_engine("none")


def write_text(path: Path, text: str) -> None:
    """Writes it, or writes it anew."""
    path.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Writes JSON; infinity and NaN, which it lacks, become null."""
    write_text(path, json.dumps(_finite(data), indent=1, allow_nan=False) + "\n")


def _finite(data: Any) -> Any:
    match data:
        case dict():
            return {name: _finite(value) for name, value in data.items()}
        case list() | tuple():
            return [_finite(value) for value in data]
        case float():
            return data if isfinite(data) else None
        case _:
            return data
