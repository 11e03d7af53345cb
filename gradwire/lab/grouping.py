"""How the command line writes which tensors travel together: `25mb` of gradient at most, `4` groups, or `hybrid`."""

import re

from gradwire import groups

_MEGABYTES = re.compile(r"(\d+(?:\.\d+)?)mb")


def read_grouping(text: str) -> groups.Grouping:
    """Reads `25mb`, `4` or `hybrid`, which is partial sparsification. Raises ValueError for anything else."""
    if text == "hybrid":
        return groups.partial()
    if match := _MEGABYTES.fullmatch(text):
        return groups.of(megabytes=float(match[1]))
    if text.isdecimal() and int(text):
        return groups.of(count=int(text))
    raise ValueError(f"@{text} is no grouping: write @25mb for up to 25 MB a group, @4 for 4 groups, or @hybrid")
