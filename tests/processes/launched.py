"""Runs a module's scenarios over real gloo: one launch for each number of ranks, made when the first outcome is wanted.

`python -m tests.processes.launched MODULE OUT [NAME...]`, on each of so many ranks, runs those that are meant for this
number of ranks, in order, or these; and rank 0 writes {scenario: error or null} to OUT.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from gradwire.lab.launch import launch
from tests.processes.scenarios import SCENARIOS, main


def cases(module: ModuleType) -> list[tuple[str, int]]:
    """The module's own scenarios, each with every number of ranks that it is meant for."""
    own = {name: worlds for name, (made, worlds) in SCENARIOS.items() if made.__module__ == module.__name__}
    return sorted(((name, world) for name, worlds in own.items() for world in worlds), key=lambda case: case[1])


class Outcomes:
    """What the module's scenarios came to, by number of ranks."""

    def __init__(self, module: ModuleType, folder: Path) -> None:
        self._module, self._folder = module.__name__, folder
        self._known: dict[int, dict[str, str | None]] = {}

    def check(self, name: str, world: int) -> None:
        """Fails with the scenario's error."""
        if world not in self._known:
            out, root = self._folder / f"{world}.json", Path(__file__).parents[2]
            argv = ["-m", __name__, self._module, str(out)]
            launch(argv, world, env={"PYTHONPATH": str(root)}, timeout_s=400)
            self._known[world] = json.loads(out.read_text())
        outcome = self._known[world]
        assert name in outcome, "an earlier scenario failed"
        assert outcome[name] is None, outcome[name]


if __name__ == "__main__":
    name, out, *names = sys.argv[1:]
    own = cases(import_module(name))
    main(out, *(names or [name for name, _ in own]))
