"""Plainer characters, for an output that cannot show all, as in ASCII."""

import codecs
import sys
from io import TextIOWrapper

_PLAIN = {"×": "x", "µ": "u", "·": "*", "≤": "<=", "≥": ">=", "±": "+-", "²": "^2", "ᵀ": "^T", "…": "..."}


def spell_out() -> None:
    """Standard output and error show others instead of a character that they cannot encode, and do not fail."""
    codecs.register_error("gradwire", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="gradwire")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
