"""Reports on made-up figures: what the tables say, and that page and pictures need nothing else."""

import json
import re
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gradwire.cli import main
from gradwire.lab.jobs.bench_job import TimedSteps
from gradwire.lab.results import TRAINING_LOSS, Record, Run, Spread, Totals, append, read_lines
from gradwire.report import (
    check_report,
    decisions,
    pictures,
    report_files,
    terminal,
    text_table,
    training_report,
    training_suite_report,
)
from gradwire.report.text_table import TextTable, figure
from gradwire.report.timing import summarize
from gradwire.report.training_cost import TrainingCost
from gradwire.report.training_suite_report import TrainedTask

FACTS = {"task": "lm", "place": "2 ranks <over> loopback", "options": {"width": "8"}, "link": None}


def totals(wire_bytes: float, interface_bytes: float | None = None) -> Totals:
    return Totals(wire_bytes, 4e6, interface_bytes, 0.1, 0.2, 0.3, 0.4)


def made_up(configuration: str, seconds: float, wire_bytes: float) -> Run:
    records = [
        Record(
            step,
            seconds * step / 4,
            5 / step,
            totals(wire_bytes * step / 4),
            [10.0 * step],
            {"loss": 6 / step, "accuracy": step / 5},
        )
        for step in range(1, 5)
    ]
    return Run(configuration, records)


RUNS = [made_up("dense", 8, 4e6), made_up("topk:0.01+residual", 2, 1e6)]


def test_a_record_survives_its_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for record in RUNS[0].records:
        append(path, record.to_line())
    with path.open("a") as file:
        file.write('{"half a')
    lines = list(read_lines(path))
    assert [Record.from_line(line) for line, _ in lines] == RUNS[0].records
    assert list(read_lines(path, offset=lines[-1][1])) == []


def test_a_line_that_grows_while_it_is_read_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(BytesIO):
        def __iter__(self):
            return iter([b'{"a": 1}\n', b'{"b"', b": 2}\n"])

    monkeypatch.setattr(Path, "open", lambda path, mode: Growing())
    assert list(read_lines(tmp_path)) == [({"a": 1}, 9)]


@pytest.mark.parametrize(
    ("number", "text"),
    [(1234.5, "1234"), (12.34, "12.3"), (0.01234, "0.0123"), (0, "0"), (float("inf"), "-"), (float("nan"), "-")],
)
def test_figures_have_three_digits(number: float, text: str) -> None:
    assert figure(number) == text


@pytest.mark.parametrize(("loss", "text"), [(12.3456, "12.346"), (0.98, "0.980"), (0.00021, "0.000210"), (0.0, "0")])
def test_a_small_loss_is_no_zero(loss: float, text: str) -> None:
    run = Run("dense", [replace(RUNS[0].last, held_out={"loss": loss})])
    assert text_table.training([run], "loss").rows[0][1] == text
    assert training_suite_report.table("own", [TrainedTask("own", "", "loss", [run])]).rows[0][3] == f"loss {text}"


def test_the_first_tenth_of_a_runs_steps_is_no_part_of_their_spread() -> None:
    records = [replace(RUNS[0].last, step_ms=step_ms) for step_ms in ([100.0, 1.0, 2.0], [3.0, 4, 5, 6, 7, 8, 9])]
    assert Run("dense", records).step_ms() == Spread(5, 3, 7)


def test_the_training_table_compares_with_the_first_run() -> None:
    table = text_table.training(RUNS, "loss")
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["configuration"] == "topk:0.01+residual"
    assert row["held-out loss"] == "1.500"
    assert row["s to finish"] == "2.00"
    assert row["MB per rank"] == "1.00"
    assert row["fewer bytes"] == "4.00×"
    assert row["speed-up"] == "4.00"
    assert "MB at the interface" not in row


def test_a_prediction_is_compared_with_what_was_played() -> None:
    checked = [check_report.Checked("dense", 10.0, 12.5), check_report.Checked("topk", 10.0, 9.0)]
    assert check_report.table(checked, 8, TrainingCost(3_600)).rows[0] == ["dense", "10.0", "12.5", "1.25×", "0.0125"]
    assert check_report.verdict(checked) == "Played steps take 0.900× to 1.25× of the predicted time."


def test_pictures_have_megabytes_of_the_run_and_of_a_step() -> None:
    lines = pictures.curves(RUNS, "loss", "").axes[2].lines
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3, 4], [0.25, 0.5, 0.75, 1]]
    time, size = pictures.costs(RUNS).axes
    assert [text.get_text() for text in size.texts] == ["1.00", "0.250"]
    (bars,) = (each for each in time.containers if hasattr(each, "has_xerr"))
    assert [part[:, 0].tolist() for part in bars[2][0].get_segments()] == [[17.5, 32.5]] * 2


def test_the_report_is_complete_by_itself(tmp_path: Path) -> None:
    paths = training_report.write(tmp_path, RUNS, "accuracy", FACTS)
    assert [path.name for path in paths] == ["curves.png", "costs.png", "report.html"]
    for path in paths[:2]:
        assert path.read_bytes().startswith(b"\x89PNG")
    page = paths[2].read_text()
    assert page.count("data:image/svg+xml;base64,") == 5  # an icon, and two for each width of screen
    assert not re.search('(src|href)="(?!data:)', page)
    assert "&lt;over&gt;" in page
    assert "topk:0.01+residual" in page
    assert "width=<wbr>8" in page


def test_pictures_and_tables_say_what_they_are(tmp_path: Path) -> None:
    page = training_report.write(tmp_path, RUNS, "loss", FACTS)[-1].read_text()
    assert page.count("<figure>") == page.count("<figcaption>") == 2
    assert 'alt="Held-out loss against steps, seconds of training, MB sent per rank; one line per' in page
    assert '<th scope="col">held-out loss</th>' in page
    assert '<th scope="row">dense</th>' in page
    assert "<main>" in page


def diverging(configuration: str, losses: list[float]) -> Run:
    run = made_up(configuration, 2, 1e6)
    records = zip(run.records, losses, strict=True)
    return Run(configuration, [replace(r, loss=loss, held_out={"loss": loss, "accuracy": 0.1}) for r, loss in records])


def test_a_run_that_diverges_is_named_and_hides_nothing(tmp_path: Path) -> None:
    runs = [RUNS[0], diverging("signsgd", [5.0, 1e9, float("inf"), float("nan")])]
    assert [row[1] for row in text_table.training(runs, "loss").rows] == ["1.500", "diverged"]
    assert pictures.names(runs) == ["dense", "signsgd (diverged)"]
    for picture in (pictures.curves(runs, "loss", ""), decisions.draw(runs)):
        low, high = picture.axes[0].get_ylim()
        assert -1 < low < 2
        assert high == 10
    paths = training_report.write(tmp_path, runs, "loss", FACTS | {"lr": float("nan")})
    assert all(path.exists() for path in paths)
    assert json.loads((tmp_path / "run.json").read_text())["lr"] is None


def test_losses_of_single_batches_are_smoothed_and_shown_pale_behind() -> None:
    losses = [5.0, 1.0] * 60
    records = [replace(RUNS[0].last, step=step, held_out={TRAINING_LOSS: loss}) for step, loss in enumerate(losses)]
    panel = pictures.curves([Run("topk", records)], TRAINING_LOSS, "").axes[0]
    smooth, pale = panel.lines
    assert max(abs(smooth.get_ydata()[1:] - smooth.get_ydata()[:-1])) < 2.1
    assert list(pale.get_ydata()) == losses
    pictures.draw_smoothed(panel, range(120), range(120), color="red")
    assert panel.lines[2].get_ydata()[60] == 60  # no earlier, and no later
    held_out = [replace(record, held_out={"loss": record.held_out[TRAINING_LOSS]}) for record in records]
    assert len(pictures.curves([Run("topk", held_out)], "loss", "").axes[0].lines) == 1


def test_pictures_are_written_in_the_formats_that_are_wanted_beside_png(tmp_path: Path) -> None:
    # a mistake in the arguments, after the formats were read
    assert main(["train", "--pdf", "--svg", "--resume", "/nowhere", "--suite", "acpsgd"]) == 2
    training_report.write(tmp_path, RUNS, "loss", FACTS)
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "costs.svg").read_text()
    # the next command has formats of its own
    assert main(["train", "--resume", "/nowhere", "--suite", "acpsgd"]) == 2
    assert not report_files.BESIDE


@pytest.mark.parametrize("first", [0.0, -1.0])
def test_losses_from_0_down_are_not_cut(first: float) -> None:
    runs = [diverging("elbo", [first, -2.0, 3.0, -3.0])]
    for picture in (pictures.curves(runs, "loss", ""), decisions.draw(runs)):
        low, high = picture.axes[0].get_ylim()
        assert low < -3
        assert high > 3


def test_a_run_that_was_never_evaluated_is_told_all_the_same(tmp_path: Path) -> None:
    run = Run("topk:0.01", [replace(record, held_out=None) for record in RUNS[1].records])
    assert text_table.training([run], "loss").rows[0][1] == "-"
    assert all(path.exists() for path in training_report.write(tmp_path, [run], "loss", FACTS))


def test_one_rank_sends_nothing(tmp_path: Path) -> None:
    nothing = Totals(0, 0, None, 0, 0, 0, 0)
    runs = [Run(run.configuration, [replace(record, totals=nothing) for record in run.records]) for run in RUNS]
    assert len(pictures.curves(runs, "loss", "").axes) == 2
    row = dict(zip(text_table.training(runs, "loss").columns, text_table.training(runs, "loss").rows[0], strict=True))
    assert (row["MB per rank"], row["fewer bytes"]) == ("0", "-")
    assert text_table.splits(runs).rows[0] == ["dense", "-", "-", "-", "-"]
    assert all(path.exists() for path in training_report.write(tmp_path, runs, "loss", FACTS))


def test_the_terminal_shows_brackets_and_whole_sentences() -> None:
    table = TextTable(
        "Runs [of] plan:runs/[a]/plan.json", ["[b]", "in words"], [["plan:runs/[c]", "word " * 30]], ["in words"]
    )
    console = Console(width=60, file=StringIO())
    console.print(terminal.fitted(table, 60))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert all(part in text for part in ("[of]", "[a]", "[b]", "[c]"))
    assert text.count("word ") + text.count("word\n") >= 30


def test_timings_are_pooled_over_repeats() -> None:
    samples = [
        TimedSteps(name, repeat, [ms + repeat, ms + repeat], totals(wire))
        for repeat in range(2)
        for name, ms, wire in (("nocomm", 10, 0), ("bf16", 20, 2e6))
    ]
    nocomm, bf16 = summarize(samples)
    assert (nocomm.step_ms.median, bf16.step_ms.median) == (10.5, 20.5)
    assert bf16.times_nocomm == pytest.approx(20.5 / 10.5)
    assert bf16.to_json()["per_step"]["wire_bytes"] == 1e6
    assert bf16.to_json()["per_step"]["interface_bytes"] is None
    rows = text_table.timings([nocomm, bf16]).rows
    assert [row[0] for row in rows] == ["nocomm", "bf16"]
    assert rows[1][4:] == ["50.0", "100", "150", "200", "1000", "2.00×"]


@pytest.mark.parametrize("factor", [None, 10.0], ids=["words alone", "windows"])
def test_a_controllers_decisions_are_drawn_and_told(tmp_path: Path, factor: float | None) -> None:
    run = made_up("topk:0.1+gravac", 2, 1e6)
    told = {"factor": factor, "gain": factor and 0.9, "throughput": factor and 12.0}
    run.records[1].decisions.append({"step": 2, "decision": "scale up to 20x"} | told)
    paths = training_report.write(tmp_path, [RUNS[0], run], "loss", FACTS)
    assert [path.name for path in paths] == ["curves.png", "decisions.png", "costs.png", "report.html"]
    report = paths[-1].read_text()
    assert "Decisions of topk:0.1+gravac" in report
    assert '<td class="text" data-column="decision"><span>scale up to 20x' in report
    figures = [name for name, value in told.items() if value is not None]
    assert decisions.table(run).columns == ["step", *figures, "decision"]
    assert ("Throughput:" in decisions.note(run)) == bool(figures)
    # the first window's figure, from the beginning
    windows = [panel.lines[0] for panel in decisions.draw([RUNS[0], run]).axes[1:]]
    assert [list(line.get_xdata()) for line in windows] == [[0, 2]] * len(figures)
