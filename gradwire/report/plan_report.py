"""The report of a plan, in one folder: it and its profile, predicted and measured steps, and why."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gradwire.lab.jobs.plan_job import Planned
from gradwire.report import explain, timeline_page, timeline_picture, timeline_trace
from gradwire.report.report_files import write_picture, write_text
from gradwire.report.text_table import TextTable, figure, times
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule import Timeline, plan_efficiency, timeline
from gradwire.schedule.candidate_names import candidate_names
from gradwire.schedule.progress import NOISE
from gradwire.tuner.trials import Tried

_TIMELINES_NOTE = """Predicted from the profile before any step with this plan; measured is the median of the steps
traced afterwards, each rank on a clock of its own that starts with its step."""

_BY_A_HOOK = "dense by a hook"
_BY_A_HOOK_NOTE = f"""With the plan DDP reduces by itself, which has no spans: {_BY_A_HOOK} is the same by Gradwire, for
illustration."""

_EFFICIENCIES_NOTE = """Progress of a step that sends everything so, in dense steps, by its residual on the job's own
gradients. Those that would harm training, or lose more than was allowed, are left out; where the step alone counts, the
former stay."""


def in_terminal(planned: Planned, gpus: int, cost: TrainingCost | None, doubt: str) -> Iterator[TextTable | str]:
    """What a terminal shows."""
    yield why(planned, gpus, cost)
    yield doubt


def write(
    folder: Path, title: str, planned: Planned, gpus: int = 1, cost: TrainingCost | None = None, doubt: str = ""
) -> list[Path]:
    """Writes timeline.html, with a `doubt` of its figures behind the verdict, timeline.png, trace.json, plan.json and
    profile.json; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    # what was measured comes first
    paths = {
        name: folder / name for name in ("timeline.html", "timeline.png", "trace.json", "plan.json", "profile.json")
    }
    planned.plan.save(paths["plan.json"])
    planned.profile.save(paths["profile.json"])
    # predicted before, and measured after
    timelines = both(planned)
    whose = f" {_BY_A_HOOK_NOTE}" if planned.plan.native else ""
    tables = [
        (why(planned, gpus, cost), explain.SHARES_NOTE),
        (efficiencies(planned), _EFFICIENCIES_NOTE),
        (explain.groups(planned.shown, planned.timeline), f"{explain.GROUPS_NOTE}{whose}"),
        (explain.lanes(timelines), f"{explain.LANES_NOTE} {_TIMELINES_NOTE}{whose}"),
    ]
    # all that the page has, also as files to load
    write_text(
        paths["timeline.html"], timeline_page.render(title, timelines, tables, f"{verdict(planned)} {doubt}".strip())
    )
    write_picture(timeline_picture.picture(title, timelines), paths["timeline.png"])
    write_text(paths["trace.json"], timeline_trace.trace_events(timelines))
    return list(paths.values())


def both(planned: Planned) -> dict[str, Timeline]:
    """The predicted and the measured step."""
    whose = f", {_BY_A_HOOK}" if planned.plan.native else ""
    predicted = timeline(planned.profile, planned.shown)
    return {f"predicted{whose}": predicted, f"measured{whose}": planned.timeline}


def why(planned: Planned, gpus: int = 1, cost: TrainingCost | None = None) -> TextTable:
    """The plan in words, beside the other plans that were tried, as measured; and, where it is asked for, what a
    training on so many GPUs costs with it, at the progress of dense steps."""
    table = explain.explain(planned.shown, planned.timeline, _others(planned), planned.profile.objective)
    native: list[list[str]] = []
    if planned.plan.native:
        native = [["plan", f"{verdict(planned)} What follows is {_BY_A_HOOK} of Gradwire's, for illustration."]]
    costs = [[cost.progress_heading, cost.at(1e3 * _step_s(planned), gpus, _efficiency(planned))]] if cost else []
    decided = [["decided", text] for text in planned.decisions]
    return replace(table, rows=[*native, *table.rows, *decided, *costs])


def efficiencies(planned: Planned) -> TextTable:
    """The efficiency of each candidate."""
    candidates = planned.profile.candidates
    rows = [
        [name, f"{each.efficiency:.3f}"] for name, each in zip(candidate_names(candidates), candidates, strict=True)
    ]
    return TextTable("Efficiency of a step", ["candidate", "dense steps"], rows, texts=("candidate",))


def verdict(planned: Planned) -> str:
    """The step with this plan, beside a dense one."""
    took = f"A step takes {figure(1e3 * _step_s(planned))} ms"
    if planned.plan.native:
        return f"Leave DDP alone: nothing is clearly faster here. {took} with DDP by itself.{_seems(planned)}"
    efficiency = _efficiency(planned)
    progress = times(efficiency * planned.gain)
    way = planned.plan.describe()
    return f"{took} with {way}, with an efficiency of {efficiency:.3f}: {progress} the progress of dense steps."


def _seems(planned: Planned) -> str:
    """A sentence about a plan that did better than the chosen one, beyond what noise explains; "" without one."""
    name, tried = max(_others(planned).items(), key=lambda other: other[1].progress, default=("", Tried(0.0, 0.0)))
    if tried.progress <= NOISE:
        return ""
    seems = f"{name} seems to make {times(tried.progress)} the progress"
    return f" {seems}, but its steps varied too much to tell: plan again on a quieter machine."


def _efficiency(planned: Planned) -> float:
    """The progress of a step with the plan, in dense steps."""
    if planned.plan.native:
        return 1.0
    measured = replace(planned.profile, objective="progress")
    return plan_efficiency(measured.problem(), measured.choices(planned.plan))


def _step_s(planned: Planned) -> float:
    """Seconds of a step with the plan: as traced, or as tried where DDP reduces by itself."""
    return planned.tried[planned.plan].step_s if planned.plan.native else planned.timeline.step_s


def _others(planned: Planned) -> Mapping[str, Tried]:
    """The other plans that were tried, by distinct names."""
    others, uses = dict[str, Tried](), Counter[str]()
    for plan, tried in planned.tried.items():
        if plan != planned.plan:
            name = plan.describe()
            uses[name] += 1
            # the second plan of a name is "... (2)"
            others[name if uses[name] == 1 else f"{name} ({uses[name]})"] = tried
    return others
