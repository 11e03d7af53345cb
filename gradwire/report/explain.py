"""Explanations of a plan, in words and in figures."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gradwire.plans import Group, Plan
from gradwire.report.text_table import TextTable, figure
from gradwire.report.timeline_rows import LANES
from gradwire.report.timeline_shares import COMPUTE, Shares, of_slowest_rank
from gradwire.report.words import counted
from gradwire.schedule import Objective
from gradwire.schedule.candidate_names import in_short
from gradwire.schedule.timeline import Span, Timeline
from gradwire.tuner.trials import Tried

SHARES_NOTE = """Of the rank that ends last. Hidden is what happens while forward, backward or optimizer run; exposed
is what the step would be shorter by without it. Where nothing computes, time counts for the wire if anything is on
it, else for encoding or decoding."""
GROUPS_NOTE = """Of the rank that ends last; milliseconds. Ready and done: from the step's start until the group's last
gradient was there, and until its mean was."""
LANES_NOTE = """Milliseconds in which a lane is busy, of the rank that ends last; what overlaps counts once."""


def explain(
    plan: Plan, timeline: Timeline, others: Mapping[str, Tried], objective: Objective = "progress"
) -> TextTable:
    """The explanation of `plan` by a step's `timeline`, beside `others`, the other plans that were tried for this
    objective, by name."""
    shares = Shares.of(timeline)
    sent = sum(span.wire_bytes for span in of_slowest_rank(timeline))
    # one line for each question, in the order in which one asks
    rows = [
        ["step", _step(shares)],
        ["compute", _compute(shares)],
        ["communication", f"{_wire(shares)} {_bytes(sent)} sent by each rank."],
        ["encode and decode", _codec(shares)],
        ["what sets the pace", _pace(shares)],
        ["groups", _groups(plan)],
    ]
    return TextTable("Why this plan", ["about", "in words"], rows + _others(others, objective), texts=("in words",))


def groups(plan: Plan, timeline: Timeline) -> TextTable:
    """Times of each group, in the order of sending."""
    columns = ["group", "tensors", "how", "ready", "encode", "wire", "decode", "done", "kB sent"]
    spans = of_slowest_rank(timeline)
    rows = [_group(index, group, spans) for index, group in enumerate(plan.groups)]
    return TextTable("Group by group", columns, rows, texts=("how",))


def lanes(timelines: Mapping[str, Timeline]) -> TextTable:
    """Busy milliseconds of each lane, and of steps, in each of the named timelines."""
    shares = [Shares.of(timeline) for timeline in timelines.values()]
    rows = [[lane, *(_ms(each.busy_s.get(lane, 0.0)) for each in shares)] for lane in LANES]
    rows += [["exposed wire", *(_ms(each.wire_exposed_s) for each in shares)]]
    rows += [["step", *(_ms(each.step_s) for each in shares)]]
    return TextTable("Lane by lane", ["lane", *timelines], rows)


def _step(shares: Shares) -> str:
    # parts of the step that add up to all of it
    parts = {
        "computing": shares.compute_s,
        "waiting for the wire": shares.wire_exposed_s,
        "waiting for encoding or decoding": shares.codec_exposed_s,
        "idle": shares.idle_s,
    }
    words = [f"{_percent(part, shares.step_s)} {name}" for name, part in parts.items() if part >= 0.005 * shares.step_s]
    return f"{_ms(shares.step_s)} ms: {_listed(words)}."


def _compute(shares: Shares) -> str:
    parts = [f"{lane} {_ms(shares.busy_s[lane])} ms" for lane in COMPUTE if lane in shares.busy_s]
    return f"{_ms(shares.compute_s)} ms, {_percent(shares.compute_s, shares.step_s)} of the step: {_listed(parts)}."


def _wire(shares: Shares) -> str:
    if not shares.wire_s:
        return "Nothing is on the wire."
    return (
        f"{_ms(shares.wire_s)} ms, of which {_ms(shares.wire_hidden_s)} ms "
        f"({_percent(shares.wire_hidden_s, shares.wire_s)}) hidden behind compute and {_ms(shares.wire_exposed_s)} ms "
        f"exposed, {_percent(shares.wire_exposed_s, shares.step_s)} of the step."
    )


def _codec(shares: Shares) -> str:
    if not shares.codec_s:
        return "None."
    return (
        f"{_ms(shares.codec_s)} ms, of which {_ms(shares.codec_hidden_s)} ms hidden behind compute or the wire and "
        f"{_ms(shares.codec_exposed_s)} ms exposed, {_percent(shares.codec_exposed_s, shares.step_s)} of the step."
    )


def _pace(shares: Shares) -> str:
    gain = f"no plan could take more than {_ms(shares.step_s - shares.compute_s)} ms off the step"
    # nearly all of it is compute: nothing else can be gained
    if shares.compute_s >= 0.95 * shares.step_s:
        return f"Compute: {gain}, for the rest is hidden behind it."
    if shares.wire_exposed_s >= max(shares.codec_exposed_s, shares.idle_s):
        return f"The wire: fewer bytes or fewer messages would help. As the compute is, {gain}."
    if shares.codec_exposed_s >= shares.idle_s:
        return f"Encoding and decoding: a cheaper compressor would help. As the compute is, {gain}."
    return (
        f"Neither compute nor the wire: the step is idle for {_ms(shares.idle_s)} ms, mostly waiting for other ranks."
    )


def _groups(plan: Plan) -> str:
    ways = Counter(_way(group) for group in plan.groups)
    tensors = Counter({way: sum(len(g.slots) for g in plan.groups if _way(g) == way) for way in ways})
    words = [f"{counted(number, 'group')} ({counted(tensors[way], 'tensor')}) by {way}" for way, number in ways.items()]
    return f"{counted(len(plan.groups), 'group')}: {_listed(words)}." if len(ways) > 1 else f"{words[0]}."


def _others(others: Mapping[str, Tried], objective: Objective) -> list[list[str]]:
    """The next best plan, and the rest of them, best first, each as it was beside the chosen one in the same trials."""
    ordered = sorted(others.items(), key=lambda other: -other[1].progress)
    words = [
        f"{name} took {_ms(tried.step_s)} ms a step, for {_difference(tried.progress, objective)}"
        for name, tried in ordered
    ]
    rows = [["next best plan", f"{words[0]}."]] if words else []
    return rows + ([["other plans", f"{'; '.join(words[1:])}."]] if words[1:] else [])


def _difference(progress: float, objective: Objective) -> str:
    percent = 100 * (progress - 1)
    what, less = ("steps", "fewer") if objective == "step" else ("progress", "less")
    if abs(percent) < 0.05:
        return f"the same {what} per second"
    # what is clearly better would have been chosen
    doubt = ", but not clearly" if percent > 0 else ""
    return f"{abs(percent):.1f} % {'more' if percent > 0 else less} {what} per second{doubt}"


def _group(index: int, group: Group, spans: Sequence[Span]) -> list[str]:
    # this group's spans, lane by lane
    of = {lane: [s for s in spans if s.group == index and s.lane == lane] for lane in LANES}
    ready_s = max((span.end_s for span in of["backward"]), default=0.0)
    done_s = max((span.end_s for lane in ("encode", "wire", "decode") for span in of[lane]), default=0.0)
    busy = [_ms(sum(span.end_s - span.start_s for span in of[lane])) for lane in ("encode", "wire", "decode")]
    sent = figure(sum(span.wire_bytes for span in of["wire"]) / 1e3)
    return [str(index), str(len(group.slots)), _way(group), _ms(ready_s), *busy, _ms(done_s), sent]


def _way(group: Group) -> str:
    kept = f" with {in_short(group.memory)}" if group.memory.error_feedback else ""
    return f"{in_short(group.compressor, first=1)}{kept} over {in_short(group.communicator)}"


def _ms(seconds: float) -> str:
    return figure(1e3 * seconds) if abs(seconds) >= 5e-7 else "0"


def _percent(part_s: float, whole_s: float) -> str:
    percent = 100 * part_s / whole_s
    return "under 1 %" if 0 < percent < 0.5 else f"{percent:.0f} %"


def _bytes(count: int) -> str:
    return f"{figure(count / 1e6)} MB" if count >= 1e6 else f"{figure(count / 1e3)} kB"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
