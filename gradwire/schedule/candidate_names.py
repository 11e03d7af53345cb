"""Candidates in words."""

import dataclasses
from collections.abc import Sequence

from gradwire.compressors import Compressor
from gradwire.plans import Group
from gradwire.schedule.profiled import Candidate


def describe(way: Group) -> str:
    """A candidate in words."""
    return f"{way.compressor} with {way.memory} by {way.communicator}"


def candidate_names(candidates: Sequence[Candidate]) -> list[str]:
    """Names of candidates: their compressors, with the rule if there is one, and the communicator where two have the
    same."""
    rules = [f" for {candidate.way.rule!r}" if candidate.way.rule else "" for candidate in candidates]
    short = [_name(each.way.compressor) + rule for each, rule in zip(candidates, rules, strict=True)]
    return [
        f"{name} by {candidate.way.communicator.called}" if short.count(name) > 1 else name
        for name, candidate in zip(short, candidates, strict=True)
    ]


def _name(compressor: Compressor) -> str:
    """A compressor's class, its first option, and others that differ from their defaults."""
    options = [(field.name, getattr(compressor, field.name), field.default) for field in dataclasses.fields(compressor)]  # pyright: ignore[reportArgumentType]
    shown = [f"{name}={value}" for i, (name, value, default) in enumerate(options) if not i or value != default]
    return f"{type(compressor).__name__}({', '.join(shown)})" if shown else type(compressor).__name__
