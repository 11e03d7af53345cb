"""Laws that hold under any faults, checked on all that ranks report."""

import re
from typing import Any

Facts = dict[str, Any]
_NAMED = re.compile(r"\branks? \d|replicas differ|store's host")
_RANK = re.compile(r"\brank (\d+)")


class Laws:
    """Checker of the laws; `broken` lists violations:

    - After the same step all ranks that train together have the same model, bit for bit.
    - A rank that goes on with others has the residual that it had, bit for bit.
    - Every rank that lives goes on, unless it is `excused`.
    - An error of training names the lost rank; where the driver has `lost` one on purpose, no other.
    - A loaded model is the saved one, bit for bit.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.excused: set[str] = set()
        self.lost: int | None = None
        self._models: dict[tuple[str, int], str] = {}
        self._owed: dict[str, tuple[int, str]] = {}
        self._saved: dict[tuple[str, int], str] = {}

    def hear(self, name: str, facts: Facts) -> None:
        """Checks a report of the rank of this name."""
        if "life" in facts:
            self._hear_state(name, facts, facts["step" if "step" in facts else "resumed"])
        if facts.get("phase") == "training":
            self._hear_error(name, facts["error"])

    def _hear_error(self, name: str, error: str) -> None:
        if not _NAMED.search(error):
            self.broken.append(f"{name} raised an error that names no rank: {error}")
        elif self.lost is not None and {int(rank) for rank in _RANK.findall(error)} != {self.lost}:
            self.broken.append(f"{name} raised an error that names others than rank {self.lost}: {error}")

    def _hear_state(self, name: str, facts: Facts, step: int) -> None:
        # after one step, one model on all ranks
        if self._models.setdefault((facts["life"], step), facts["model"]) != facts["model"]:
            self.broken.append(f"after step {step} the model of {name} is another than other ranks'")
        # a checkpoint brings back the model that was saved
        if facts.get("saved"):
            self._saved[facts["job"], step] = facts["model"]
        if facts.get("loaded") and self._saved.setdefault((facts["job"], step), facts["model"]) != facts["model"]:
            self.broken.append(f"{name} began again after step {step} with another model than was saved")
        # memory: no rank goes on without it, or with another than it had
        if facts.get("late") and name not in self.excused:
            self.broken.append(f"{name} came too late to go on after step {step}: its memory is lost")
        before, owed = self._owed.get(name, (-1, ""))
        if facts.get("stayed") and before == step and owed != facts["owed"]:
            self.broken.append(f"{name} went on after step {step} with another memory than it had")
        self._owed[name] = step, facts["owed"]
