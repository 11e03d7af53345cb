"""A table of a job's plan and statistics."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite

from gradwire.plans import Plan
from gradwire.runtime.state.row_memory import PLAIN_ROWS, RowScheme
from gradwire.runtime.stats import Stats

HEADINGS = ("group", "tensors", "elements", "compressor", "memory", "communicator", "rule")


def table(
    plan: Plan, numel: Mapping[str, int], stats: Stats, sparse: Collection[str] = (), way: RowScheme = PLAIN_ROWS
) -> str:
    """The plan group by group, with tensors of so many elements, and the `sparse` gradients beside it, whose rows go
    this way; then what a step sent and where its time went; of an automatic plan also how it was chosen."""
    rows = [
        (
            str(index), str(len(group.slots)), f"{sum(numel[name] for name in group.slots):,}", str(group.compressor),
            str(group.memory), str(group.communicator), group.rule,
        )
        for index, group in enumerate(plan.groups)
    ]  # fmt: skip
    elements = sum(numel[name] for group in plan.groups for name in group.slots)
    # without rules there is no column of theirs
    shown = [cells[: None if any(group.rule for group in plan.groups) else -1] for cells in (HEADINGS, *rows)]
    beside = [f"{_rows(way)}: {', '.join(sorted(sparse))}"] if sparse else []
    return "\n".join([*(_aligned(shown) if rows else [plan.describe()]), *beside, *_figures(stats, elements)])


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
