"""The profile of a job, measured or written by hand, from which plans are made."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gradwire.group_checks import takes
from gradwire.plan_parts import WrittenPart, as_json, groups_as_json, in_place, json_of
from gradwire.plans import Group, Plan, check_version, from_file
from gradwire.rules import sort_by
from gradwire.schedule.candidate_names import describe
from gradwire.schedule.costs import ZERO_COST, Affine, ComposedCost, CostTable, SumCost, from_data
from gradwire.schedule.problem import GroupChoice, Option, Problem
from gradwire.schedule.profiled import Candidate, SlotTime, check_seconds, whole
from gradwire.schedule.sent_bytes import bytes_of_elements, bytes_of_slots, layout_of, wire_bytes
from gradwire.slots import Slot
from gradwire.split_groups import within_length

Objective = Literal["progress", "step"]
"""What plans are chosen by: progress per second, or the seconds of a step."""
VERSION = 1
LOCAL = ("sum", "broadcast")
"""Collectives inside a host of several GPUs, in the order in which a group needs them."""


@dataclass(frozen=True)
class Profile:
    """A job's compute times, candidates, and network."""

    slots: tuple[SlotTime, ...]
    """In the order in which they become ready."""
    forward_s: float
    """Seconds from the step's beginning to that of backward."""
    optimizer_s: float
    """Seconds from the last mean to the next step."""
    candidates: tuple[Candidate, ...]
    """The ways to send among which plans choose."""
    collectives: Mapping[str, Affine | CostTable]
    """By the communicator's name, seconds against the bytes that one rank sends (`Communicator.wire`), among all ranks;
    where hosts have several GPUs, among one rank of each host."""
    ranks: int
    """All of the job's."""
    gpus_per_host: int = 1
    local: Mapping[str, Affine | CostTable] = field(default_factory=dict)
    """Seconds of "sum" and "broadcast" inside a host of several GPUs against the bytes of the dense gradient."""
    device: str = "cpu"
    """The kind on which it was measured."""
    objective: Objective = "progress"
    """With "step" every candidate's efficiency counts as 1, and `unasked` candidates carry small slots alone, as they
    do under rules."""
    contention: float = 0.0
    """The part of its speed that backward loses while the worker computes."""

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError("the profile has no candidates, so there is nothing to choose from; measure one or more")
        if not self.slots:
            raise ValueError("the profile has no slots, so there is nothing to send; profile a model")
        for name in ("forward_s", "optimizer_s"):
            check_seconds(name, getattr(self, name))
        if not 0 <= self.contention <= 1:
            raise ValueError(f"contention={self.contention} is no part of backward's speed; it lies in [0, 1]")
        if self.gpus_per_host < 1:
            raise ValueError(f"hosts have 1 GPU or more, not {self.gpus_per_host}")
        if self.ranks < 1 or self.ranks % self.gpus_per_host:
            raise ValueError(f"{self.ranks} ranks do not fill hosts of {self.gpus_per_host} GPUs; give a multiple")
        if self.objective not in get_args(Objective):
            raise ValueError(
                f"the profile's objective {self.objective!r} is neither 'progress', per second, nor 'step'"
            )
        # every collective that a candidate uses has a cost
        names = {candidate.way.communicator.called for candidate in self.candidates}
        needed = {"collectives": names, "local": LOCAL if self.gpus_per_host > 1 else ()}
        for part, names in needed.items():
            if missing := set(names) - set(getattr(self, part)):
                raise ValueError(f"the profile's {part} lack {min(missing)!r}; measure it, or see over_link()")

    @property
    def hosts(self) -> int:
        """The number of hosts, which take part in the collectives between them."""
        return self.ranks // self.gpus_per_host

    def check(self, slots: Sequence[Slot]) -> None:
        """Raises ValueError, naming the parameter, where this is another model's profile."""
        # every parameter of the model was profiled, in its shape, and nothing else
        mine = {slot.name: slot.shape for slot in self.slots}
        for slot in slots:
            if slot.name not in mine:
                raise ValueError(f"the profile lacks the model's parameter {slot.name!r}; profile this model")
            if mine[slot.name] != tuple(slot.shape):
                raise ValueError(
                    f"parameter {slot.name!r} is {tuple(slot.shape)}, in the profile {mine[slot.name]}; "
                    "profile this model"
                )
        if unknown := mine.keys() - {slot.name for slot in slots}:
            raise ValueError(f"the profile has parameter {min(unknown)!r}, which the model lacks; profile this model")

    def problem(self) -> Problem:
        """The search's problem; its slots are this profile's, in this order."""
        # a slot counts as ready once all before it are, as groups are runs of neighbours
        # vectors travel dense, but beside votes, of which dense ones are none
        votes = any(candidate.way.compressor.sign_vote for candidate in self.candidates)
        small = np.array([slot.dim < 2 and not votes for slot in self.slots])
        options = tuple(self._option(candidate) for candidate in self.candidates)
        if self.objective == "step":
            options = tuple(dataclasses.replace(option, efficiency=1.0) for option in options)
        # where all slots are small, or nothing else is left, what fills up is an option like others
        alone = small.all() or all(candidate.unasked for candidate in self.candidates)
        options = tuple(
            dataclasses.replace(option, filler=self._fills(candidate) and not alone)
            for option, candidate in zip(options, self.candidates, strict=True)
        )
        return Problem(
            ready_s=np.maximum.accumulate(np.array([slot.ready_s for slot in self.slots])),
            elements=np.array([float(slot.numel) for slot in self.slots]),
            small=small,
            options=options,
            around_s=self.forward_s + self.optimizer_s,
        )

    def _fills(self, candidate: Candidate) -> bool:
        return candidate.unasked and (self.objective == "step" or candidate.way.rule != "")

    def by_rule(self) -> "list[Profile]":
        """The profile of each rule's slots, with its candidates alone."""
        of: dict[str, list[Candidate]] = {}
        for candidate in self.candidates:
            of.setdefault(candidate.way.rule, []).append(candidate)
        # without rules
        if of.keys() == {""}:
            return [self]
        sorted_slots = sort_by(of, self.slots)
        return [
            dataclasses.replace(self, slots=tuple(slots), candidates=tuple(of[rule]))
            for rule, slots in sorted_slots.items()
            if slots
        ]

    def plan(self, groups: Sequence[GroupChoice]) -> Plan:
        """The plan of these groups; what is too long for a compressor travels in parts, or is cast."""
        ways = [(way, own) for group in groups for way, own in self._ways(group).items()]
        return within_length(Plan(tuple(dataclasses.replace(way, slots=tuple(own)) for way, own in ways)), self.slots)

    def _ways(self, group: GroupChoice) -> dict[Group, list[str]]:
        """The group's slots by way: slots that are too long for its compressor are cast, if its rule has a candidate
        that is a cast."""
        way, ways = self.candidates[group.option].way, dict[Group, list[str]]()
        casts = [one.way for one in self.candidates if one.way.compressor.is_cast and one.way.rule == way.rule]
        for slot in (self.slots[index] for index in group.slots):
            ways.setdefault(way if takes(way.compressor, slot.numel) or not casts else casts[0], []).append(slot.name)
        return ways

    def choices(self, plan: Plan) -> tuple[GroupChoice, ...]:
        """The plan's groups. Raises ValueError, naming it, for a slot or a candidate that was not profiled."""
        slot_of = {slot.name: index for index, slot in enumerate(self.slots)}
        # by number: slots, and candidates without their slots
        ways = [candidate.way for candidate in self.candidates]
        groups: list[GroupChoice] = []
        for group in plan.groups:
            way = dataclasses.replace(group, slots=())
            if way not in ways:
                raise ValueError(f"the profile has no candidate {describe(way)}; profile it, or make another plan")
            if unknown := [name for name in group.slots if name not in slot_of]:
                raise ValueError(f"the plan names parameter {unknown[0]!r}, which the profile lacks")
            groups.append(GroupChoice(tuple(slot_of[name] for name in group.slots), ways.index(way)))
        return tuple(groups)

    def wire_bytes(self, group: GroupChoice) -> int:
        """Bytes that one rank, or one host, sends for the group."""
        layout = layout_of([self.slots[i].shape for i in group.slots])
        return wire_bytes(self.candidates[group.option].way, layout, self.hosts)

    def _option(self, candidate: Candidate) -> Option:
        # on the wire: bytes follow from elements, or slot by slot
        way = candidate.way
        wire = self.collectives[candidate.way.communicator.called]
        units = None
        shapes = [slot.shape for slot in self.slots]
        if way.compressor.sized_by_elements:
            wire = ComposedCost(wire, bytes_of_elements(way, shapes, self.hosts))
        else:
            units = bytes_of_slots(way, shapes, self.hosts)
            # rounds after the first add their latency, but no bytes
            wire = SumCost(((wire, 1), *((wire, 0) for _ in range(way.compressor.rounds - 1))))
        local = SumCost(tuple((self.local[name], 4) for name in LOCAL)) if self.gpus_per_host > 1 else ZERO_COST
        lossless = way.compressor.is_cast
        return Option(candidate.encode, wire, candidate.decode, lossless, units, local, candidate.efficiency)

    def save(self, path: str | Path) -> None:
        """Writes the profile to a file, as JSON."""
        Path(path).write_text(self._text(in_place) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Profile":
        """Reads what `save` wrote. Raises ValueError, naming the file, where it cannot be read or holds no profile."""
        return from_file(path, cls.from_json)

    def to_json(self) -> str:
        """The profile as JSON text; `from_json` reads it back."""
        return self._text(as_json)

    def _text(self, part: WrittenPart) -> str:
        # candidates are written as a plan's groups, with their costs
        ways = groups_as_json((candidate.way for candidate in self.candidates), part)
        data = {
            "version": VERSION,
            "slots": [dataclasses.asdict(slot) for slot in self.slots],
            "candidates": [
                way
                | {"encode": each.encode.to_data(), "decode": each.decode.to_data()}
                | {"efficiency": each.efficiency, "unasked": each.unasked}
                for way, each in zip(ways, self.candidates, strict=True)
            ],
            "collectives": {name: cost.to_data() for name, cost in self.collectives.items()},
            "local": {name: cost.to_data() for name, cost in self.local.items()},
        }
        plain = ("forward_s", "optimizer_s", "ranks", "gpus_per_host", "device", "objective", "contention")
        return json.dumps(data | {name: getattr(self, name) for name in plain}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Reads `to_json`'s text. Raises ValueError, naming what does not fit, for other text or another version."""
        data = json_of(text, "profile")
        check_version(data, "profile", VERSION)
        try:
            # candidates are a plan's groups, with costs
            ways = Plan.from_json(json.dumps({"version": 1, "groups": data["candidates"]})).groups
            return cls(
                slots=tuple(
                    SlotTime(
                        s["name"], tuple(s["shape"]), float(s["ready_s"]), bool(s.get("pairs")), int(s.get("cut", 0))
                    )
                    for s in data["slots"]
                ),
                forward_s=float(data["forward_s"]),
                optimizer_s=float(data["optimizer_s"]),
                candidates=tuple(_candidate(way, part) for way, part in zip(ways, data["candidates"], strict=True)),
                collectives=_costs(data["collectives"]),
                ranks=whole("ranks", data["ranks"]),
                gpus_per_host=whole("gpus_per_host", data["gpus_per_host"]),
                local=_costs(data["local"]),
                device=str(data["device"]),
                objective=data["objective"],
                contention=float(data.get("contention", 0.0)),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this is no profile that Profile.to_json() wrote: {error}") from error


def _candidate(way: Group, data: dict[str, Any]) -> Candidate:
    costs = from_data(data["encode"]), from_data(data["decode"])
    return Candidate(way, *costs, float(data["efficiency"]), bool(data["unasked"]))


def _costs(data: dict[str, Any]) -> dict[str, Affine | CostTable]:
    return {name: from_data(cost) for name, cost in data.items()}
