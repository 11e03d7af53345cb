"""The error for a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is not known, with the nearest that is, or all of them."""
    known = list(known)
    spelled = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), spelled, n=1)
    hint = f"did you mean {spelled[near[0]]}?" if near else f"there are {', '.join(known)}"
    return ValueError(f"there is no {what} {name!r}: {hint}")
