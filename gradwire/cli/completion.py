"""Completions for the shell's Tab key, which load torch for the parts of configurations alone."""

from collections.abc import Iterable

from gradwire.lab.names import MODELS, PRESETS, TASKS


def configurations(incomplete: str) -> list[str]:
    """Plain DDP, `auto`, torch's hooks, local steps, and compressors; after a + its other parts."""
    from gradwire.lab.catalogue import catalogue

    # what may stand behind a +, or at the beginning
    kinds = catalogue()
    head, plus, last = incomplete.rpartition("+")
    begun = head.startswith("localsteps") and "+" not in head
    partners = ("Compressors",) if begun or not plus else ("Memories", "Communicators", "Controllers")
    names = [entry.name for kind in partners for entry in kinds[kind]]
    first = [] if plus else [entry.name for kind in ("Baselines", "Rounds", "Hooks") for entry in kinds[kind]]
    return [f"{head}{plus}{name}" for name in (*first, *names) if name.startswith(last)]


def candidates(incomplete: str) -> list[str]:
    """Compressors separated by commas."""
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in _of("Compressors", last)]


def controllers(incomplete: str) -> list[str]:
    """Their names."""
    return _of("Controllers", incomplete)


def tasks(incomplete: str) -> list[str]:
    """Their names."""
    return _beginning(TASKS, incomplete)


def models(incomplete: str) -> list[str]:
    """Their names."""
    return _beginning(MODELS, incomplete)


def presets(incomplete: str) -> list[str]:
    """Their names."""
    return _beginning(PRESETS, incomplete)


def families(incomplete: str) -> list[str]:
    """Kinds, and everything of each."""
    from gradwire.lab.catalogue import catalogue

    kinds = catalogue()
    names = [*map(str.lower, kinds), *(entry.name for entries in kinds.values() for entry in entries)]
    return _beginning(names, incomplete)


def _of(kind: str, incomplete: str) -> list[str]:
    from gradwire.lab.catalogue import catalogue

    return _beginning((entry.name for entry in catalogue()[kind]), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
