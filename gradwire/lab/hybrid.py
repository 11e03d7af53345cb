"""ADTopk's partial sparsification: small matrices travel dense, by all-reduce, inside the budget of their group."""

from collections.abc import Sequence
from dataclasses import fields, replace

from gradwire.communicators import AllReduce
from gradwire.compressors import FP32, Compressor
from gradwire.layout import Slot
from gradwire.memory import NoMemory
from gradwire.plan import Group, Plan


class Hybrid:
    """Within each group, matrices travel dense, the smallest first, as long as all of them have fewer elements
    than the group would send in all; the others send what is left of that. (Ming et al.,
    https://doi.org/10.1145/3625549.3658678)"""

    def check(self, compressor: Compressor) -> None:
        """Raises ValueError for a compressor without a ratio: there is no budget to keep."""
        if not _ratios(compressor):
            raise ValueError(f"{type(compressor).__name__} has no ratio, so no budget: @hybrid is for sparse ones")

    def regroup(self, plan: Plan, slots: Sequence[Slot], compressor: Compressor) -> Plan:
        """`plan` with the small matrices of its compressed groups moved to one dense group, sent last."""
        ratio = max(_ratios(compressor))
        numel = {slot.name: slot.numel for slot in slots}
        dense, groups = [], []
        for group in plan.groups:
            if group.compressor != compressor:
                dense += group.slots
                continue
            total = sum(numel[name] for name in group.slots)
            small = _within(group.slots, numel, total * ratio)
            filled = sum(numel[name] for name in small)
            dense += small
            rest = tuple(name for name in group.slots if name not in small)
            left = (total * ratio - filled) / (total - filled)
            groups.append(replace(group, slots=rest, compressor=_scaled(compressor, left / ratio)))
        last = [Group(tuple(dense), FP32(), NoMemory(), AllReduce())] if dense else []
        return Plan((*groups, *last))


def _within(names: Sequence[str], numel: dict[str, int], budget: float) -> set[str]:
    chosen: set[str] = set()
    for name in sorted(names, key=lambda name: numel[name]):
        budget -= numel[name]
        if budget <= 0:
            break
        chosen.add(name)
    return chosen


def _ratios(compressor: Compressor) -> list[float]:
    """Its own, and those of the compressors that it is made of."""
    nested = [ratio for part in _parts(compressor).values() for ratio in _ratios(part)]
    return [*([compressor.ratio] if hasattr(compressor, "ratio") else []), *nested]  # pyright: ignore


def _parts(compressor: Compressor) -> dict[str, Compressor]:
    values = {field.name: getattr(compressor, field.name) for field in fields(compressor)}  # pyright: ignore[reportArgumentType]
    return {name: value for name, value in values.items() if isinstance(value, Compressor)}


def _scaled(compressor: Compressor, factor: float) -> Compressor:
    changes: dict[str, object] = {name: _scaled(part, factor) for name, part in _parts(compressor).items()}
    if hasattr(compressor, "ratio"):
        changes["ratio"] = factor * compressor.ratio  # pyright: ignore
    return replace(compressor, **changes)  # pyright: ignore[reportArgumentType, reportCallIssue]
