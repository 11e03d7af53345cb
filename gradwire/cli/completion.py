"""Completions for the shell's Tab key. They load no torch, which would take seconds."""

from collections.abc import Callable, Iterable

from gradwire.lab.names import (
    AUTO,
    DENSE,
    HOOKS,
    KINDS,
    LOCAL,
    MODELS,
    NOCOMM,
    PARTNERS,
    PRESETS,
    SUITES,
    TASKS,
    exported_names,
)

_FIRST = (DENSE, NOCOMM, AUTO, LOCAL, *HOOKS)
"""Configurations that are no compressors."""


def configurations(incomplete: str) -> list[str]:
    """Plain DDP, `auto`, torch's hooks, local steps, and compressors; after a + its other parts."""
    head, plus, last = incomplete.rpartition("+")
    # local steps stand before a compressor
    begun = head.startswith(LOCAL) and "+" not in head
    names = exported_names("compressors") if begun or not plus else exported_names(*PARTNERS)
    return [f"{head}{plus}{name}" for name in _beginning([*(() if plus else _FIRST), *names], last)]


def candidates(incomplete: str) -> list[str]:
    """Compressors separated by commas."""
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in _beginning(exported_names("compressors"), last)]


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Completes one of these names."""

    def complete(incomplete: str) -> list[str]:
        return _beginning(names, incomplete)

    return complete


def families(incomplete: str) -> list[str]:
    """Kinds, and everything of each."""
    own = exported_names("compressors", *PARTNERS)
    return _beginning([*KINDS, *_FIRST, *own, *TASKS, *MODELS, *PRESETS, *SUITES], incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
