"""The report of a plan, in one folder: it and its profile, predicted and measured steps, and why."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gradwire.lab.jobs.plan_job import Planned
from gradwire.report import explain, timeline_page, timeline_picture, timeline_trace
from gradwire.report.report_files import write_picture, write_text
from gradwire.report.text_table import TextTable, figure, times
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule import Timeline, plan_efficiency, timeline
from gradwire.schedule.simulate import names
from gradwire.tuner.trials import Tried

_TIMELINES_NOTE = """Predicted from the profile before any step with this plan; measured is the median of the steps
traced afterwards, each rank on a clock of its own that starts with its step."""


_EFFICIENCIES_NOTE = """Progress of a step that sends everything so, in dense steps, by its residual on the job's own
gradients. Those that would harm training, or lose more than was allowed, are left out; where the step alone counts, the
former stay."""


def write(folder: Path, title: str, planned: Planned, gpus: int = 1, cost: TrainingCost | None = None) -> list[Path]:
    """Writes timeline.html, timeline.png, trace.json, plan.json and profile.json; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    # predicted before, and measured after
    timelines = both(planned)
    tables = [
        (why(planned, gpus, cost), explain.SHARES_NOTE),
        (efficiencies(planned), _EFFICIENCIES_NOTE),
        (explain.groups(planned.plan, planned.timeline), explain.GROUPS_NOTE),
        (explain.lanes(timelines), f"{explain.LANES_NOTE} {_TIMELINES_NOTE}"),
    ]
    # all that the page has, also as files to load
    paths = {
        name: folder / name for name in ("timeline.html", "timeline.png", "trace.json", "plan.json", "profile.json")
    }
    write_text(paths["timeline.html"], timeline_page.render(title, timelines, tables, verdict(planned)))
    write_picture(timeline_picture.picture(title, timelines), paths["timeline.png"])
    write_text(paths["trace.json"], timeline_trace.trace_events(timelines))
    planned.plan.save(paths["plan.json"])
    planned.profile.save(paths["profile.json"])
    return list(paths.values())


def both(planned: Planned) -> dict[str, Timeline]:
    """The predicted and the measured step."""
    predicted = timeline(planned.profile, planned.plan)
    return {"predicted": predicted, "measured": planned.timeline}


def why(planned: Planned, gpus: int = 1, cost: TrainingCost | None = None) -> TextTable:
    """The plan in words, beside the other plans that were tried, as measured; and, where it is asked for, what a
    training on so many GPUs costs with it."""
    table = explain.explain(planned.plan, planned.timeline, _others(planned))
    costs = [[cost.heading, cost.at(1e3 * planned.timeline.step_s, gpus)]] if cost else []
    return replace(table, rows=[*table.rows, *(["decided", text] for text in planned.decisions), *costs])


def efficiencies(planned: Planned) -> TextTable:
    """The efficiency of each candidate."""
    candidates = planned.profile.candidates
    rows = [[name, f"{each.efficiency:.3f}"] for name, each in zip(names(candidates), candidates, strict=True)]
    return TextTable("Efficiency of a step", ["candidate", "dense steps"], rows, texts=("candidate",))


def verdict(planned: Planned) -> str:
    """The step with this plan, beside DDP's own where that was measured."""
    measured = replace(planned.profile, objective="progress")
    efficiency = plan_efficiency(measured.problem(), measured.choices(planned.plan))
    took = f"A step takes {figure(1e3 * planned.timeline.step_s)} ms with {planned.plan.describe()}"
    sentence = f"{took}, with an efficiency of {efficiency:.3f}"
    if planned.gain is None:
        return f"{sentence}."
    return f"{sentence}: {times(efficiency * planned.gain)} the progress of dense steps."


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
