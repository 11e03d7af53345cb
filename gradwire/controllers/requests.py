"""What a controller may ask for beside another plan: plain values, carried out by the runtime on all ranks alike."""

import json
from dataclasses import dataclass

from gradwire.plans import Group, Plan
from gradwire.schedule import Profile


@dataclass(frozen=True)
class ProfileRequest:
    """Trace the next `steps` steps with `plan`, then measure each of the `ways`, groups without slots, on the job's own
    network. The plan stays in force."""

    plan: Plan
    ways: tuple[Group, ...]
    steps: int


@dataclass(frozen=True)
class Profiled:
    """The answer: what was measured, the same on all ranks, and the share of its speed that backward loses while the
    worker computes."""

    profile: Profile
    contention: float


@dataclass(frozen=True)
class NativeRequest:
    """Have the framework reduce by itself for so many steps, and ask again."""

    steps: int


Request = ProfileRequest | NativeRequest
Change = Plan | Request


def change_to_json(change: Change) -> str:
    """As text; `change_from_json` reads it back."""
    match change:
        case Plan():
            return json.dumps({"plan": change.to_json()})
        case ProfileRequest(under, ways, steps):
            return json.dumps({"profile": steps, "under": under.to_json(), "ways": Plan(ways).to_json()})
        case NativeRequest(steps):
            return json.dumps({"native": steps})


def change_from_json(text: str) -> Change:
    """The inverse of `change_to_json`."""
    data = json.loads(text)
    if "plan" in data:
        return Plan.from_json(data["plan"])
    if "profile" in data:
        return ProfileRequest(Plan.from_json(data["under"]), Plan.from_json(data["ways"]).groups, data["profile"])
    return NativeRequest(data["native"])
