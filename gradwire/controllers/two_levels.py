"""Plans with `MultiLevel` compression, for controllers that choose between two factors."""

from collections.abc import Iterator

from gradwire.compressors import Compressor, MultiLevel
from gradwire.controllers.controller import GroupView, StepView
from gradwire.controllers.gain import Reading
from gradwire.controllers.recompress import Defaults, recompress, with_options
from gradwire.plans import Group, Plan


def with_levels(
    plan: Plan,
    smaller: float,
    factor: float,
    reading: Reading,
    least_gain: float,
    defaults: Defaults,
    smoothing: float = 1.0,
) -> Plan:
    """A copy of the plan whose sparsifiers send `factor` times fewer elements where that gains `least_gain`, else
    `smaller` times fewer where that does, else everything; gains are smoothed as `MultiLevel` says."""
    # the share of the norm that gives the least gain
    least = reading.share(least_gain)

    def compressor_of(group: Group, name: str) -> Compressor:
        if not (group.compressor.has_levels and group.compressor.biased):
            return group.compressor
        # first level: the smaller factor; second: the larger one
        first = with_options(group.compressor, {"ratio": 1 / smaller})
        return MultiLevel(first, factor / smaller, least, reading.measure, smoothing)

    return recompress(plan, compressor_of, defaults)


def levels_of(seen: StepView) -> Iterator[tuple[MultiLevel, GroupView]]:
    """The groups of a step that have two levels, each with its compressor."""
    for view in seen.groups:
        if isinstance(view.group.compressor, MultiLevel):
            yield view.group.compressor, view


def check_levels(plan: Plan, controller: str, defaults: Defaults, least: float) -> None:
    """Raises ValueError, naming the call that works, where the plan's groups cannot have levels for a `controller`,
    which send everything where they hold less than the `least` share."""
    # some group has a sparsifier
    leveled = [group for group in plan.groups if group.compressor.has_levels and group.compressor.biased]
    if not leveled:
        raise ValueError(
            f"{controller} needs the norms of a sparsifier's selections, and {plan.groups[0].compressor} gives none; "
            f"use attach(ddp, TopK(0.1), controller={controller}())"
        )
    named = defaults.named(plan)
    # each has a residual, and a collective that sends levels, or may get one
    for group in leveled:
        if not group.memory.error_feedback:
            raise ValueError(f"{controller}'s gain is that of gradient and residual; use memory=Residual()")
        if least and group.memory.masks_sent:
            raise ValueError(
                f"{controller} sends all where its levels gain too little, of which DGCMemory keeps no momentum; "
                "use memory=Residual()"
            )
        if not group.communicator.sends_levels and group in named:
            name = group.communicator.called
            raise ValueError(f"{controller}'s levels are gathered, not sent by {name}(); leave communicator= out")
