"""What must hold whatever befalls a job, held against all that its ranks say."""

import re
from typing import Any

Words = dict[str, Any]
_NAMED = re.compile(r"\branks? \d|replicas differ|store's host")


class Laws:
    """`broken` are the laws that were, in words:

    after the same step, of those that train together, all models are bit for bit the same; whoever goes on with others
    has kept its memory's bits; whoever lives does, unless it is `excused`; errors of training name who was lost.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.excused: set[str] = set()
        self._models: dict[tuple[str, int], str] = {}
        self._owed: dict[str, tuple[int, str]] = {}

    def hear(self, name: str, words: Words) -> None:
        """What the rank of this name has said."""
        if "life" in words:
            self._hear_state(name, words, words["step" if "step" in words else "resumed"])
        if words.get("phase") == "training" and not _NAMED.search(words["error"]):
            self.broken.append(f"{name} raised an error that names nobody: {words['error']}")

    def _hear_state(self, name: str, words: Words, step: int) -> None:
        if self._models.setdefault((words["life"], step), words["model"]) != words["model"]:
            self.broken.append(f"after step {step} the model of {name} is another than other ranks'")
        if words.get("late") and name not in self.excused:
            self.broken.append(f"{name} came too late to go on after step {step}: its memory is lost")
        before, owed = self._owed.get(name, (-1, ""))
        if words.get("stayed") and before == step and owed != words["owed"]:
            self.broken.append(f"{name} went on after step {step} with another memory than it had")
        self._owed[name] = step, words["owed"]
