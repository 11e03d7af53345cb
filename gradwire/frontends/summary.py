"""A table of a job's plan and statistics."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite

from gradwire.plans import Group, Plan
from gradwire.runtime.state.row_memory import PLAIN_ROWS, RowScheme
from gradwire.runtime.stats import Stats
from gradwire.schedule.candidate_names import in_short

HEADINGS = ("tensors", "elements", "compressor", "memory", "communicator", "rule")
MOST_ROWS = 40
"""Of more groups, those with the same compressor, memory, communicator and rule share a row."""


def table(
    plan: Plan, numel: Mapping[str, int], stats: Stats, sparse: Collection[str] = (), way: RowScheme = PLAIN_ROWS
) -> str:
    """The plan group by group, of very many by how they are sent, with tensors of so many elements, and the `sparse`
    gradients beside it, whose rows go this way; then what a step sent and where its time went; of an automatic plan
    also how it was chosen."""
    if len(plan.groups) <= MOST_ROWS:
        rows = [("group", *HEADINGS), *((str(index), *_row([own], numel)) for index, own in enumerate(plan.groups))]
    else:
        ways = [(group.compressor, group.memory, group.communicator, group.rule) for group in plan.groups]
        alike = [[own for own, of in zip(plan.groups, ways, strict=True) if of == way] for way in dict.fromkeys(ways)]
        rows = [("groups", *HEADINGS), *((str(len(groups)), *_row(groups, numel)) for groups in alike)]
    elements = sum(numel[name] for group in plan.groups for name in group.slots)
    # without rules there is no column of theirs
    shown = [cells[: None if any(group.rule for group in plan.groups) else -1] for cells in rows]
    beside = [f"{_rows(way)}: {', '.join(sorted(sparse))}"] if sparse else []
    return "\n".join([*(_aligned(shown) if plan.groups else [plan.describe()]), *beside, *_figures(stats, elements)])


def _row(groups: Sequence[Group], numel: Mapping[str, int]) -> tuple[str, ...]:
    """The cells of groups that are sent alike."""
    names, first = [name for group in groups for name in group.slots], groups[0]
    parts = in_short(first.compressor, first=1), in_short(first.memory), in_short(first.communicator)
    return str(len(names)), f"{sum(numel[name] for name in names):,}", *parts, first.rule


def _rows(way: RowScheme) -> str:
    compressor, memory = way
    kept = f", {memory}" if memory.error_feedback else ""
    return "as sparse rows" if way == PLAIN_ROWS else f"as sparse rows, {compressor}{kept}"


def _figures(stats: Stats, elements: int) -> list[str]:
    """Bytes and times per step, and the memory that is held for so many elements."""
    steps = max(stats.steps, 1)
    # of a step
    times = {"encode": stats.encode_s, "wire": stats.wire_s, "decode": stats.decode_s, "waited for": stats.wait_s}
    spent = ", ".join(f"{name} {1e3 * seconds / steps:.2f} ms" for name, seconds in times.items())
    sent, dense = (f"{count / steps / 1e3:,.1f} kB" for count in (stats.wire_bytes, stats.dense_bytes))
    fewer = f"; {stats.ratio:.1f} times fewer" if isfinite(stats.ratio) else ""
    lines = [f"sent a step: {sent}; dense {dense}{fewer}", f"time a step: {spent}"]
    if elements:
        held = stats.held_bytes
        lines.append(f"memory held: {held / 1e6:,.1f} MB, {held / elements:.1f} bytes a parameter")
    # of the whole run
    lines.append(f"kernels: {stats.kernels}")
    recorded = [f"recorded turns: {stats.recorded}"] if stats.recorded else []
    return [*lines, *recorded, *stats.account.splitlines()]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest entry, the numbers of the first three to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.rjust(width) if at < 3 else text.ljust(width) for at, (text, width) in enumerate(cells)).rstrip()
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]
