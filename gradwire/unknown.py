"""The error for a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: str, known: Iterable[str], meant: Iterable[str] = ()) -> ValueError:
    """The error for a name that is not known, with the first of those `meant` by it that is, the nearest, or all."""
    known = list(known)
    spelled = {each.lower(): each for each in known}
    near = [each for each in meant if each in known]
    near += [spelled[each] for each in get_close_matches(name.lower(), spelled, n=1)]
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return ValueError(f"there is no {what} {name!r}: {hint}")
