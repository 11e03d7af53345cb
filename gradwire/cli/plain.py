"""Standard streams: plainer characters for an output that cannot show all, as in ASCII, and none that is closed."""

import codecs
import os
import sys
from contextlib import suppress
from typing import Any

_PLAIN = {"×": "x", "µ": "u", "·": "*", "≤": "<=", "≥": ">=", "±": "+-", "²": "^2", "ᵀ": "^T", "…": "..."}


def open_closed() -> None:
    """Opens /dev/null in place of standard streams that are closed, as by `>&-`: else the next file that is opened,
    here or in a rank, would get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, nowhere := open(os.devnull, mode))  # noqa: SIM115
            os.set_inheritable(nowhere.fileno(), True)


def spell_out() -> None:
    """Standard output and error show plainer characters for those that they cannot encode, instead of failing."""
    codecs.register_error("gradwire", _spelled)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a stream that was put in its place
            stream.reconfigure(errors="gradwire")  # pyright: ignore[reportAttributeAccessIssue]


def _spelled(error: Any) -> tuple[str, int]:
    """The plainer characters for those that an encoder has refused, and where it goes on."""
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
