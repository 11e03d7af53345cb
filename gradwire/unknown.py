"""The errors for names that are not known."""

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


def unknown_part(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name in a configuration, which may be the beginning of a file's that is not written as it has to
    be."""
    if "/" not in name and not name.endswith(".py"):
        return unknown(what, name, known)
    return ValueError(
        f"{name!r} is no {what}: one of your own is file.py:MyClass, with %20 for a space, %2B for a + and %40 for a @"
    )
