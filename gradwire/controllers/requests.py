"""Requests of controllers, instead of another plan: plain values, which the runtime carries out on all ranks."""

import json
from dataclasses import dataclass
from zlib import crc32

from gradwire.options import one_line
from gradwire.plans import Group, Plan


@dataclass(frozen=True)
class ProfileRequest:
    """Request to trace steps, then to measure ways to compress on the job's own network. The answer is a `Profile`, the
    same on all ranks."""

    plan: Plan
    """In force while tracing, and after."""
    ways: tuple[Group, ...]
    """To measure: groups without slots."""
    steps: int
    """To trace."""


@dataclass(frozen=True)
class NativeRequest:
    """Request that the framework reduce by itself, for some steps, whose median time the answer has. Raises ValueError
    where none is timed."""

    steps: int
    settle: int = 0
    """How many of them, the first ones, do not count."""

    def __post_init__(self) -> None:
        if not 0 <= self.settle < self.steps:
            raise ValueError(f"of {self.steps} steps {self.settle} settle, so none is timed; ask for more steps")


Request = ProfileRequest | NativeRequest
Change = Plan | Request


def change_to_json(change: Change) -> str:
    """A change as JSON, which `change_from_json` reads. Raises ValueError for what is none."""
    match change:
        case Plan():
            return json.dumps({"plan": change.to_json()})
        case ProfileRequest(under, ways, steps):
            return json.dumps({"profile": steps, "under": under.to_json(), "ways": Plan(ways).to_json()})
        case NativeRequest(steps, settle):
            return json.dumps({"native": steps, "settle": settle})
        case other:
            raise ValueError(f"{one_line(other)} is no decision; return a gw.Plan, or None to go on as before")


def fingerprint(change: Change) -> float:
    """A number that float32 holds exactly, never 0."""
    return 1.0 + (crc32(change_to_json(change).encode()) & 0x7F_FFFF)


def change_from_json(text: str) -> Change:
    """The inverse of `change_to_json`."""
    data = json.loads(text)
    if "plan" in data:
        return Plan.from_json(data["plan"])
    if "profile" in data:
        return ProfileRequest(Plan.from_json(data["under"]), Plan.from_json(data["ways"]).groups, data["profile"])
    return NativeRequest(data["native"], data.get("settle", 0))
