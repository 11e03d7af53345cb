"""Pictures of made-up steps: that they hold every span, need nothing else, and say what the figures say."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradwire as gw
from gradwire.cli.console import show_and_write
from gradwire.lab.jobs.plan_job import Planned
from gradwire.report import explain, plan_report, timeline_picture
from gradwire.report.timeline_page import render
from gradwire.report.timeline_rows import rows
from gradwire.report.timeline_shares import Shares
from gradwire.report.timeline_trace import trace_events
from gradwire.schedule import Affine, Candidate, Profile, SlotTime, over_link
from gradwire.schedule.timeline import Span, Timeline
from gradwire.tuner.trials import Tried
from tests.support.browser import CHROMIUM, Page, browser

NASTY = 'layer</script><b onmouseover="x">&{{ 1 }}'
NAMES = (NASTY, "body.weight", "head.weight")
PLAN = gw.Plan((
    gw.Group(NAMES[:2], gw.TopK(0.01), gw.Residual(), gw.AllGather()),
    gw.Group(NAMES[2:], gw.FP32(), gw.NoMemory(), gw.AllReduce()),
))  # fmt: skip


def step(rank: int = 0, late_s: float = 0.0) -> list[Span]:
    """60 ms, and `late_s`: 40 of compute, 30 on the wire with 5 of overlap, of which 15 are hidden."""
    return [
        Span("forward", 0, 0.01, "forward", -1, rank),
        Span("backward", 0.01, 0.02, NASTY, 0, rank, slots=NAMES[:1]),
        Span("backward", 0.02, 0.025, "body.weight", 0, rank, slots=NAMES[1:2]),
        Span("encode", 0.025, 0.027, "TopK", 0, rank, slots=NAMES[:2]),
        Span("wire", 0.025, 0.04, "Gather", 0, rank, 1_500_000, NAMES[:2]),
        Span("backward", 0.025, 0.035, "head.weight", 1, rank, slots=NAMES[2:]),
        Span("wire", 0.035, 0.05 + late_s, "Sum", 1, rank, 500, NAMES[2:]),
        Span("decode", 0.05 + late_s, 0.053 + late_s, "TopK", 0, rank, slots=NAMES[:2]),
        Span("wait", 0.035, 0.055 + late_s, "wait", -1, rank),
        Span("optimizer", 0.055 + late_s, 0.06 + late_s, "optimizer", -1, rank),
    ]


PREDICTED = Timeline(tuple(step()))
MEASURED = Timeline((*step(0, 0.002), *step(1, 0.006)))
BOTH = {"predicted": PREDICTED, "measured": MEASURED}
TABLES = [
    (
        explain.explain(PLAN, PREDICTED, {"fp32": Tried(0.05, 0.25), "one group": Tried(0.069, 0.85)}),
        explain.SHARES_NOTE,
    ),
    (explain.groups(PLAN, MEASURED), explain.GROUPS_NOTE),
    (explain.lanes(BOTH), explain.LANES_NOTE),
]


@pytest.fixture(scope="module")
def page() -> str:
    return render("A <model>", BOTH, TABLES)


def test_rows_hold_every_span_once_and_no_two_at_a_time():
    laid = rows(MEASURED)
    assert sorted((span for row in laid for span in row.spans), key=str) == sorted(MEASURED.spans, key=str)
    for row in laid:
        assert all(a.end_s <= b.start_s for a, b in pairwise(row.spans))
    assert [(row.lane, row.track) for row in laid if row.rank == 1 and row.lane == "wire"] == [("wire", 0), ("wire", 1)]


def test_a_picture_has_a_panel_for_each_step_and_a_row_for_each_lane():
    panels = timeline_picture.picture("A plan", BOTH).axes
    assert [panel.get_title() for panel in panels] == ["predicted: 60.0 ms", "measured: 66.0 ms"]
    assert [len(panel.collections) for panel in panels] == [8, 8]


def test_the_page_needs_nothing_else(page: str):
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(
        r'<link(?! rel="icon" href="data:)|<img|<iframe|@import|url\(|\bsrc=|\bfetch\(|XMLHttp|WebSocket', page
    )
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_the_page_holds_every_span(page: str):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    data = json.loads(text)
    for panel, (name, timeline) in zip(data["panels"], BOTH.items(), strict=True):
        assert panel["name"] == name
        assert panel["step_s"] == timeline.step_s
        drawn = [
            Span(row["lane"], start, end, label, group, row["rank"], size, tuple(data["slots"][i] for i in slots))
            for row in panel["rows"]
            for start, end, label, group, size, slots in row["spans"]
        ]
        assert len(drawn) == len(timeline.spans)
        assert {span.label for span in drawn} == {span.label for span in timeline.spans}
        assert {(s.lane, s.rank, s.group, s.wire_bytes, s.slots) for s in drawn} == {
            (s.lane, s.rank, s.group, s.wire_bytes, s.slots) for s in timeline.spans
        }


def test_names_are_text_not_markup(page: str):
    assert NASTY not in page
    assert "<b " not in page
    assert "<title>A &lt;model&gt;</title>" in page


def test_the_page_compares_with_the_first(page: str):
    assert "60.0 ms<" in page
    assert "66.0 ms, 10.0 % more than predicted" in page


def test_the_trace_is_of_the_trace_event_format():
    trace = json.loads(trace_events(BOTH))
    events = trace["traceEvents"]
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    for event in events:
        assert event["ph"] in {"X", "M"}
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(PREDICTED.spans) + len(MEASURED.spans)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in spans} == named
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["predicted, rank 0", "measured, rank 0", "measured, rank 1"]
    for place in named:  # on one thread, viewers want complete events apart or nested
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if (e["pid"], e["tid"]) == place)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(mine))
    gather = next(event for event in spans if event["name"] == "Gather")
    assert gather["cat"] == "wire"
    assert (gather["ts"], gather["dur"]) == (25_000, 15_000)
    assert gather["args"] == {"wire_bytes": 1_500_000, "group": 0, "slots": list(NAMES[:2])}


def test_shares_add_up_to_the_step():
    shares = Shares.of(PREDICTED)
    assert shares.step_s == pytest.approx(0.06)
    assert shares.compute_s == pytest.approx(0.04)
    assert shares.wire_s == pytest.approx(0.025)
    assert shares.wire_exposed_s == pytest.approx(0.015)
    assert shares.wire_hidden_s == pytest.approx(0.01)
    assert shares.codec_exposed_s == pytest.approx(0.003)
    assert shares.codec_hidden_s == pytest.approx(0.002)
    assert shares.idle_s == pytest.approx(0.002)
    whole = shares.compute_s + shares.wire_exposed_s + shares.codec_exposed_s + shares.idle_s
    assert whole == pytest.approx(shares.step_s)


def test_shares_are_those_of_the_rank_that_ends_last():
    assert Shares.of(MEASURED).wire_s == pytest.approx(0.031)


def test_an_encoder_that_stops_backward_is_exposed():
    stopped = [Span("backward", 0, 1, "a", 0, 0), Span("encode", 1, 3, "a", 0, 0), Span("backward", 3, 4, "b", 1, 0)]
    shares = Shares.of(Timeline(tuple(stopped)))
    assert (shares.compute_s, shares.codec_exposed_s, shares.idle_s) == (2, 2, 0)


@pytest.mark.parametrize(
    ("after", "pace"),
    [("wire", "The wire:"), ("decode", "Encoding and decoding:"), ("wait", "Neither"), ("optimizer", "Compute:")],
)
def test_what_follows_compute_sets_the_pace_however_long_something_else_is_hidden(after: str, pace: str):
    hidden = [Span(lane, 0, 1, "a", 0, 0) for lane in ("backward", "encode")]
    sent = [Span("wire", 0, 1, "a", 0, 0, 11_500), Span("wire", 0.2, 0.4, "b", 1, 0, 500)]
    step = Timeline((*hidden, *sent, Span(after, 1, 1.5, "b", 1, 0)))
    words = dict(explain.explain(PLAN, step, {}).rows)
    assert words["what sets the pace"].startswith(pace)
    assert "1000 ms (" in words["communication"]
    assert words["communication"].endswith(" 12.0 kB sent by each rank.")


def test_words_say_what_the_figures_are():
    words = dict(TABLES[0][0].rows)
    assert words["step"] == (
        "60.0 ms: 67 % computing, 25 % waiting for the wire, 5 % waiting for encoding or decoding and 3 % idle."
    )
    assert words["compute"].startswith("40.0 ms, 67 % of the step: forward 10.0 ms, backward 25.0 ms")
    assert "10.0 ms (40 %) hidden behind compute and 15.0 ms exposed, 25 % of the step" in words["communication"]
    assert words["communication"].endswith("1.50 MB sent by each rank.")
    assert words["what sets the pace"].startswith("The wire:")
    assert words["next best plan"] == "one group took 69.0 ms a step, for 15.0 % less progress per second."
    assert words["other plans"] == "fp32 took 50.0 ms a step, for 75.0 % less progress per second."
    words = dict(explain.explain(PLAN, PREDICTED, {"fp32": Tried(0.05, 0.25)}, "step").rows)
    assert words["next best plan"] == "fp32 took 50.0 ms a step, for 75.0 % fewer steps per second."
    assert words["groups"].startswith("2 groups: 1 group (2 tensors) by TopK(ratio=0.01) with Residual over")


def test_a_plan_without_rivals_names_none():
    assert "next best plan" not in dict(explain.explain(PLAN, PREDICTED, {}).rows)


def test_groups_tell_their_way():
    first, second = explain.groups(PLAN, PREDICTED).rows
    assert first[3:] == ["25.0", "2.00", "15.0", "3.00", "53.0", "1500"]
    assert second[3:] == ["35.0", "0", "15.0", "0", "50.0", "0.500"]


def test_lanes_stand_side_by_side():
    table = explain.lanes(BOTH)
    assert table.columns == ["lane", "predicted", "measured"]
    assert ["wire", "25.0", "31.0"] in table.rows
    assert table.rows[-1] == ["step", "60.0", "66.0"]


@pytest.fixture(scope="module")
def shown(page: str, tmp_path_factory: pytest.TempPathFactory):
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    folder = tmp_path_factory.mktemp("browser")
    (folder / "timeline.html").write_text(page)
    with browser(folder / "profile") as tab:
        tab.open(folder / "timeline.html")
        yield tab


def place(tab: Page, canvas: int, row: int, share: float) -> tuple[float, float]:
    """Where in the window a share of the view's width lies in a row of a canvas."""
    x, y, width = tab.value(
        f"(b => [b.x + GUTTER, b.y, b.width - GUTTER])(lanes[{canvas}].canvas.getBoundingClientRect())"
    )
    return x + share * width, y + tab.value(f"top_of({row}) + ROW / 2")


def test_a_browser_draws_it_without_a_complaint_or_a_request(shown: Page, tmp_path: Path):
    assert shown.complaints() == []
    assert [Path(url).name for url in shown.requests()] == ["timeline.html"]
    assert shown.value("lanes.length") == 3
    # names of configurations are shown as they are typed
    assert shown.value("getComputedStyle(document.querySelector('h2'), '::first-letter').textTransform") == "none"
    pen = "document.querySelectorAll('canvas.lanes')[0].getContext('2d')"
    assert shown.value(f"new Set({pen}.getImageData(0, 0, 1200, 150).data).size") > 20
    shown.screenshot(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_hovering_tells_names_bytes_and_seconds(shown: Page):
    shown.mouse("Moved", *place(shown, 0, 3, 0.5))  # 33 ms: the first group is on the wire
    told = shown.value("tip.innerText")
    assert told.splitlines()[0] == "Gather"
    assert "wire · group 0 · rank 0, predicted" in told
    assert "15.000 ms, from 25.000 ms to 40.000 ms" in told
    assert "1.50 MB sent by this rank, 800.0 Mbit/s" in told
    assert NASTY in told
    assert "body.weight" in told
    shown.mouse("Moved", 5, 5)
    assert shown.value("tip.hidden")


def test_dragging_zooms_and_the_button_shows_the_whole_step(shown: Page):
    whole = shown.value("view")
    shown.mouse("Pressed", *place(shown, 1, 1, 0.25), button="left", clickCount=1)
    shown.mouse("Moved", *place(shown, 1, 1, 0.5), button="left", buttons=1)
    shown.mouse("Released", *place(shown, 1, 1, 0.5), button="left", clickCount=1)
    assert shown.value("view") == pytest.approx([0.25 * whole[1], 0.5 * whole[1]], rel=0.01)
    shown.mouse("Wheel", *place(shown, 1, 1, 0.5), deltaX=0, deltaY=-300, modifiers=2)
    assert shown.value("view[1] - view[0]") < 0.2 * whole[1]
    shown.value("document.getElementById('whole').click()")
    assert shown.value("view") == whole


def test_arrows_move_the_view_but_where_a_table_has_the_focus(shown: Page):
    press = "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true, cancelable: true})"
    shown.value("look(0, whole[1] / 2)")
    before = shown.value("view")
    assert shown.value(f"document.querySelector('.wide').dispatchEvent({press})")  # nobody prevents it
    assert shown.value("view") == before
    assert not shown.value(f"lanes[0].canvas.dispatchEvent({press})")
    assert shown.value("view[0]") > before[0]
    shown.value("look(...whole)")


def test_it_is_dark_where_the_reader_wants_it(shown: Page):
    light = shown.value("colours.paper")
    shown.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    shown.frame()
    assert shown.value("colours.paper") != light
    assert shown.complaints() == []


def test_the_report_has_every_plan_that_was_tried_though_they_read_alike():
    """Four plans of one group of TopK, which differ in what the group's tensors are called."""
    plans = [gw.Plan((gw.Group((name,), gw.TopK(0.01), gw.Residual(), gw.AllGather()),)) for name in "abcd"]
    tried = {plan: Tried(0.01 * number, 1 / number) for number, plan in enumerate(plans, 1)}
    profile: Any = SimpleNamespace(objective="progress")  # of which these words have nothing else
    planned = Planned(PLAN, PLAN, profile, tried, 1.0, MEASURED, [])
    words = " ".join(text for row in plan_report.why(planned).rows for text in row)
    assert re.findall(r"took (\d+)\.?\d* ms", words) == ["10", "20", "30", "40"]


def left_alone(rival: Tried) -> Planned:
    """As a job has it where DDP by itself was chosen."""
    dense = gw.Group((), gw.FP32(), gw.NoMemory(), gw.AllReduce())
    slots = tuple(SlotTime(name, (64, 64), 0.01 * number) for number, name in enumerate(NAMES))
    candidates = (Candidate(dense, Affine(), Affine(), 1.0),)
    profile = Profile(slots, 0.01, 0.0, candidates, over_link(candidates, 2, 1e-4, 1e9), ranks=2)
    by_a_hook = gw.Plan((replace(dense, slots=NAMES),))
    tried = {gw.NATIVE: Tried(0.0123, 1.0), by_a_hook: rival}
    line = Planned(gw.NATIVE, by_a_hook, profile, tried, 1.0, MEASURED, ["DDP by itself"]).to_line()
    return Planned.from_line(json.loads(json.dumps(line)))


def test_what_was_measured_is_kept_where_a_table_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Minutes of measuring were lost with it."""
    planned = left_alone(Tried(0.0121, 1.02))
    monkeypatch.setattr(explain, "explain", lambda *parts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        show_and_write(
            plan_report.in_terminal(planned, 1, None, ""), lambda: plan_report.write(tmp_path, "A plan", planned)
        )
    assert gw.Plan.load(tmp_path / "plan.json") == gw.NATIVE
    assert Profile.load(tmp_path / "profile.json") == planned.profile


@pytest.mark.parametrize(
    ("rival", "compared"),
    [
        (Tried(0.0345, 0.36), "34.5 ms a step, for 64.0 % less progress per second."),
        (Tried(0.0121, 1.02), "12.1 ms a step, for 2.0 % more progress per second, but not clearly."),
        (Tried(0.0091, 1.35), "9.10 ms a step, for 35.0 % more progress per second, but not clearly."),
    ],
)
def test_where_nothing_clearly_beats_ddp_by_itself_the_report_says_to_leave_it_alone(
    rival: Tried, compared: str, tmp_path: Path
):
    """The step that is shown is not called the plan's. A plan that seems faster is no contradiction: it is named."""
    planned = left_alone(rival)
    paths = {path.name: path for path in plan_report.write(tmp_path, "A plan", planned)}
    assert gw.Plan.load(paths["plan.json"]) == gw.NATIVE
    said = "Leave DDP alone: nothing is clearly faster here. A step takes 12.3 ms with DDP by itself."
    if rival.progress > 1.03:
        said += (
            " 1 group of FP32() by AllReduce() seems to make 1.35× the progress, but its steps varied too much to tell:"
        )
        said += " plan again on a quieter machine."
    assert said in paths["timeline.html"].read_text()
    rows = plan_report.why(planned).rows
    assert rows[0] == ["plan", f"{said} What follows is dense by a hook of Gradwire's, for illustration."]
    assert [text for name, text in rows if name == "next best plan"] == [
        f"1 group of FP32() by AllReduce() took {compared}"
    ]
    assert [*plan_report.both(planned)] == ["predicted, dense by a hook", "measured, dense by a hook"]


def test_the_verdict_of_a_plan_is_its_progress():
    way = gw.Group((), gw.TopK(0.01), gw.Residual(), gw.AllGather())
    candidates = (Candidate(way, Affine(), Affine(), 0.8),)
    slots = tuple(SlotTime(name, (64, 64), 0.01) for name in NAMES)
    profile = Profile(slots, 0.01, 0.0, candidates, over_link(candidates, 2, 1e-4, 1e9), 2, objective="step")
    plan = gw.Plan((replace(way, slots=NAMES),))
    planned = Planned(plan, plan, profile, {plan: Tried(0.06, 1.0)}, 2.5, PREDICTED, [])
    assert plan_report.verdict(planned) == (
        f"A step takes 60.0 ms with {plan.describe()}, with an efficiency of 0.800: 2.00× the progress of dense steps."
    )
