"""What must hold whatever befalls a job, held against all that its ranks say."""

import re
from typing import Any

Words = dict[str, Any]
_NAMED = re.compile(r"\branks? \d|replicas differ|store's host")
_RANK = re.compile(r"\brank (\d+)")


class Laws:
    """`broken` are the laws that were, in words:

    after the same step, of those that train together, all models are bit for bit the same; whoever goes on with others
    has kept its memory's bits; whoever lives does, unless it is `excused`; errors of training name who was lost: where
    it is known that it was rank `lost`, that one and no other; what is loaded is bit for bit what was saved.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.excused: set[str] = set()
        self.lost: int | None = None
        self._models: dict[tuple[str, int], str] = {}
        self._owed: dict[str, tuple[int, str]] = {}
        self._saved: dict[tuple[str, int], str] = {}

    def hear(self, name: str, words: Words) -> None:
        """What the rank of this name has said."""
        if "life" in words:
            self._hear_state(name, words, words["step" if "step" in words else "resumed"])
        if words.get("phase") == "training":
            self._hear_error(name, words["error"])

    def _hear_error(self, name: str, error: str) -> None:
        if not _NAMED.search(error):
            self.broken.append(f"{name} raised an error that names nobody: {error}")
        elif self.lost is not None and {int(rank) for rank in _RANK.findall(error)} != {self.lost}:
            self.broken.append(f"{name} raised an error that names others than rank {self.lost}: {error}")

    def _hear_state(self, name: str, words: Words, step: int) -> None:
        if self._models.setdefault((words["life"], step), words["model"]) != words["model"]:
            self.broken.append(f"after step {step} the model of {name} is another than other ranks'")
        if words.get("saved"):
            self._saved[words["job"], step] = words["model"]
        if words.get("loaded") and self._saved.setdefault((words["job"], step), words["model"]) != words["model"]:
            self.broken.append(f"{name} began again after step {step} with another model than was saved")
        if words.get("late") and name not in self.excused:
            self.broken.append(f"{name} came too late to go on after step {step}: its memory is lost")
        before, owed = self._owed.get(name, (-1, ""))
        if words.get("stayed") and before == step and owed != words["owed"]:
            self.broken.append(f"{name} went on after step {step} with another memory than it had")
        self._owed[name] = step, words["owed"]
