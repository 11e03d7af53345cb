"""Candidates in words."""

import dataclasses
from collections.abc import Sequence

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.memories import Memory
from gradwire.plans import Group
from gradwire.schedule.profiled import Candidate


def describe(way: Group) -> str:
    """A candidate in words."""
    return f"{way.compressor} with {way.memory} by {way.communicator}"


def candidate_names(candidates: Sequence[Candidate]) -> list[str]:
    """Names of candidates: their compressors, with the rule if there is one, and the communicator where two have the
    same."""
    rules = [f" for {candidate.way.rule!r}" if candidate.way.rule else "" for candidate in candidates]
    short = [in_short(each.way.compressor, first=1) + rule for each, rule in zip(candidates, rules, strict=True)]
    return [
        f"{name} by {candidate.way.communicator.called}" if short.count(name) > 1 else name
        for name, candidate in zip(short, candidates, strict=True)
    ]


def in_short(part: Compressor | Memory | Communicator, first: int = 0) -> str:
    """A part's class, so many of its first options, and those that differ from their defaults."""
    if not dataclasses.is_dataclass(part):
        return str(part)
    options = [(field.name, getattr(part, field.name), field.default) for field in dataclasses.fields(part)]
    shown = [f"{name}={value}" for i, (name, value, default) in enumerate(options) if i < first or value != default]
    return f"{type(part).__name__}({', '.join(shown)})" if shown else type(part).__name__
