"""Reports in a browser: nothing sticks out at 1280 and 400 pixels, light and dark, and the first sentence says it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.lab.built_in_profiles import profile
from gradwire.lab.experiments.bench_setup import Setup, TimingOptions
from gradwire.lab.experiments.suites import SuiteRow
from gradwire.lab.names import NOCOMM
from gradwire.lab.network.link import Link
from gradwire.lab.results import Run, Spread
from gradwire.report import (
    simulation_report,
    suite_report,
    timeline_page,
    training_report,
    training_suite_report,
    verdict,
)
from gradwire.report.pictures import COLOURS
from gradwire.report.text_table import figure
from gradwire.report.timing import Timing
from gradwire.report.training_cost import TrainingCost
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.simulate import BEST, GIVEN, simulate
from tests.report.test_report import FACTS, RUNS, diverging, made_up
from tests.report.test_timeline_report import BOTH, TABLES
from tests.support.browser import CHROMIUM, Page, browser

MANY = [*RUNS, made_up("interleaved:alldimensiontopk/0.1,second=dgc/0.1+residual+allgather@hybrid", 3, 5e5)]
DECIDED = {"step": 2, "factor": 10.0, "gain": 0.8, "throughput": 3.0, "decision": "10× from now on: a long reason " * 4}


def adapting() -> Run:
    run = made_up("topk:0.1+gravac:10,1000", 4, 4e5)
    return Run(run.configuration, [*run.records[:-1], replace(run.records[-1], decisions=[DECIDED])])


def write_training(folder: Path) -> Path:
    return training_report.write(
        folder,
        [*MANY, adapting()],
        "loss",
        FACTS | {"command": "gradwire train " * 20, "optimizer_options": {"lr": 0.1, "momentum": None}},
    )[-1]


def write_simulation(folder: Path) -> Path:
    job, clusters = profile("resnet50"), [Cluster(ranks, rate / 8) for rate in (1e9, 25e9) for ranks in (8, 64)]
    outcomes = [outcome for cluster in clusters for outcome in simulate(job, cluster)]
    return simulation_report.write(folder, "resnet50", outcomes, {"job": "resnet50"})[1]


def write_suite(folder: Path) -> Path:
    setups = [Setup(model="resnet50", ranks=ranks, link="1gbit", batch=8, size=64) for ranks in (2, 4)]
    results = []
    for setup in setups:
        timings = [timing(name, ms, NOCOMM) for name, ms in ((NOCOMM, 9.0), ("dense", 40.0), ("topk:0.01@0mb", 20.0))]
        rows = [SuiteRow(setup, timing.configuration, setup) for timing in timings[1:]]
        results += suite_report.results(rows, timings, TimingOptions(2, 1))
    return suite_report.write(folder, "gravac", results, {"machine": "made up"})[1]


def timing(name: str, ms: float, nocomm: str) -> Timing:
    return Timing(name, Spread(ms, 0.9 * ms, 1.1 * ms), ms / 9, 4, RUNS[0].last.totals)


def write_trainings(folder: Path) -> Path:
    trained = training_suite_report.TrainedTask("lm", "lstm", "loss", RUNS)
    return training_suite_report.write(folder, "gravac", [trained], {})[0]


def write_timeline(folder: Path) -> Path:
    (folder / "timeline.html").write_text(timeline_page.render("A plan", BOTH, TABLES, "As fast as can be."))
    return folder / "timeline.html"


PAGES = {
    "training": write_training,
    "simulation": write_simulation,
    "suite": write_suite,
    "trainings": write_trainings,
    "timeline": write_timeline,
}
STICKING_OUT = """
[...document.querySelectorAll("body *")].filter(element => {
  const box = element.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1) && !element.closest(".wide, [hidden]");
}).map(element => element.outerHTML.slice(0, 80))
"""
HIDDEN = """[...document.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth + 1).length"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name in PAGES:
        (folder / name).mkdir()
    return {name: write(folder / name) for name, write in PAGES.items()}


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(tab: Page, written: dict[str, Path], name: str, width: int, dark: bool) -> None:
    tab.open(written[name], width=width, dark=dark)
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert tab.value(STICKING_OUT) == []
    assert tab.value(HIDDEN) == 0
    assert tab.value("document.querySelector('link[rel=icon]').href.startsWith('data:')")
    assert tab.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_pages_are_as_dark_as_the_reader_asks(tab: Page, written: dict[str, Path], dark: bool) -> None:
    for path in written.values():
        tab.open(path, dark=dark)
        paper = [int(part) for part in re.findall(r"\d+", tab.value("getComputedStyle(document.body).backgroundColor"))]
        ink = [int(part) for part in re.findall(r"\d+", tab.value("getComputedStyle(document.body).color"))]
        assert (sum(paper) < sum(ink)) == dark
        assert abs(sum(paper) - sum(ink)) > 450


def test_lines_have_a_contrast_of_3_in_light_and_in_dark(tab: Page, written: dict[str, Path]) -> None:
    tab.open(written["training"], dark=True)
    paper = tab.value("getComputedStyle(document.body).backgroundColor")
    dark = luminance(int(part) for part in re.findall(r"\d+", paper))
    for colour in COLOURS:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        assert 1.05 / (luminance((red, green, blue)) + 0.05) >= 3, colour
        # as in the page: invert(1) hue-rotate(180deg)
        r, g, b = 255 - red, 255 - green, 255 - blue
        turned = -0.574 * r + 1.43 * g + 0.144 * b, 0.426 * r + 0.43 * g + 0.144 * b, 0.426 * r + 1.43 * g - 0.856 * b
        assert (luminance(turned) + 0.05) / (dark + 0.05) >= 3, colour


def luminance(rgb: Iterable[float]) -> float:
    """By WCAG 2, of numbers up to 255."""
    parts = [min(1.0, max(0.0, part / 255)) for part in rgb]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", PAGES)
def test_print_is_dark_on_white_and_as_wide_as_the_paper(tab: Page, written: dict[str, Path], name: str) -> None:
    """A dark system's colours would vanish on paper, whose width of 718 pixels is no phone's."""
    tab.open(written[name], width=718, dark=True)
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    tab.call("Emulation.setEmulatedMedia", media="print", features=[dark])
    tab.frame()
    assert tab.value("getComputedStyle(document.body).color") == "rgb(26, 26, 26)"
    assert tab.value("[...document.images].every(each => getComputedStyle(each).filter === 'none')")
    assert tab.value("getComputedStyle(document.querySelector('.wide thead')).display") == "table-header-group"
    assert tab.value(HIDDEN) == 0
    if name == "timeline":
        assert tab.value("colours.ink") == "#1a1a1a"


def test_phones_get_pictures_with_panels_below_each_other(tab: Page, written: dict[str, Path]) -> None:
    shape = "(image => image.naturalHeight / image.naturalWidth)(document.querySelector('img'))"
    tab.open(written["training"], width=1280)
    assert tab.value(shape) < 0.6
    tab.open(written["training"], width=400)
    assert tab.value(shape) > 1.5
    # a wide one is as wide as the page, in letters of its size
    tab.open(written["simulation"], width=1280)
    assert tab.value(shape) < 0.6


def test_on_phones_a_number_that_names_a_row_says_of_what_and_words_begin_at_the_left(
    tab: Page, written: dict[str, Path]
) -> None:
    tab.open(written["timeline"], width=400)
    group = "[...document.querySelectorAll('tbody th')].find(each => each.textContent === '0')"
    assert tab.value(f"getComputedStyle({group}, '::before').content") == '"group "'
    assert tab.value("getComputedStyle(document.querySelector('td.text:not(:only-of-type)')).textAlign") == "left"


def test_what_can_be_copied_to_a_shell_is_broken_between_words_and_nothing_stands_empty(
    tab: Page, written: dict[str, Path]
) -> None:
    tab.open(written["suite"], width=1280)
    assert tab.value("[...document.querySelectorAll('.option')].every(each => each.getClientRects().length === 1)")
    commands = "[...document.querySelectorAll('tr td:last-child')].map(each => each.innerText)"
    assert "gradwire bench dense --model resnet50 --hosts 2 --link 1gbit" in tab.value(commands)[0]
    for path in written.values():
        tab.open(path)
        assert tab.value("[...document.querySelectorAll('th')].filter(each => !each.textContent).length") == 0
        # a column of empty cells, or an option that was not given
        assert tab.value("[...document.querySelectorAll('td')].filter(each => !each.textContent).length") == 0


def ended(dense: float, other: float) -> list[Run]:
    """Two runs by their last held-out loss; the second is four times as fast."""
    losses = zip([("dense", 8), ("topk", 2)], (dense, other), strict=True)
    return [Run(name, [replace(made_up(name, s, 1e6).last, held_out={"loss": loss})]) for (name, s), loss in losses]


VERDICTS = [
    (RUNS, "accuracy", "topk:0.01+residual: 4.00× faster than dense, held-out accuracy +0.0 points."),
    (RUNS, "loss", "topk:0.01+residual: 4.00× faster than dense, held-out loss +0.0 %."),
    ([*RUNS, made_up("dgc", 1, 1e6)], "loss", "dgc: 8.00× faster than dense, held-out loss +0.0 %."),
    (RUNS[:1], "loss", "dense reached held-out loss 1.500."),
    (ended(0.00021, 0.0)[:1], "loss", "dense reached held-out loss 0.000210."),
    (RUNS[::-1], "loss", "Nothing was faster than topk:0.01+residual."),
    (
        [RUNS[0], diverging("signsgd", [5.0, 6, 7, float("nan")])],
        "loss",
        "All but dense diverged: there is nothing to compare it with.",
    ),
    (
        [RUNS[0], RUNS[0], diverging("signsgd", [5.0, 6, 7, float("nan")])],
        "loss",
        "Nothing was faster than dense; 1 of 2 diverged.",
    ),
    ([diverging("dense", [5.0, 6, 7, float("nan")])], "loss", "dense diverged."),
    (
        [diverging("dense", [5.0, 6, 7, float("nan")]), RUNS[1]],
        "loss",
        "dense diverged: there is nothing to compare with.",
    ),
    (ended(0.0, 0.0), "loss", "topk: 4.00× faster than dense, held-out loss from 0 to 0."),
    (ended(0.0, -1.0), "loss", "topk: 4.00× faster than dense, held-out loss from 0 to -1.00."),
    (ended(-2.0, -1.99), "loss", "topk: 4.00× faster than dense, held-out loss +0.5 %."),
    (ended(-2.0, -2.5), "loss", "topk: 4.00× faster than dense, held-out loss -25.0 %."),
]


@pytest.mark.parametrize(("runs", "metric", "said"), VERDICTS)
def test_the_verdict_of_a_training(runs: list[Run], metric: str, said: str) -> None:
    assert verdict.of_training(runs, metric) == said


def test_what_is_fast_and_worse_is_not_praised() -> None:
    worse = diverging("topk:0.001", [5.0, 4, 3, 3])
    said = verdict.of_training([RUNS[0], worse], "loss")
    assert said == (
        "None was both faster and as good as dense; the fastest, topk:0.001: 4.00× faster than dense, "
        "held-out loss +100.0 %."
    )


def test_one_number_of_ranks_is_drawn_as_bars_and_the_best_compressor_is_named() -> None:
    """Lines were points on each other, in a panel without height below a legend of many lines."""
    outcomes = list(simulate(profile("resnet50"), Cluster(8, 1e9 / 8)))
    drawn = simulation_report.picture(outcomes, "resnet50")
    assert len(drawn.axes[0].patches) == len(outcomes)
    said = "Of one compressor alone, DGC(ratio=0.01) does best on 8 ranks at 1gbit, 4.5"
    assert said in simulation_report.verdict(outcomes)
    # a training costs as many steps as dense ones make its progress
    best = next(each for each in outcomes if each.way == BEST)
    priced = simulation_report.table(outcomes, TrainingCost(3_600_000))
    assert priced.columns[-1] == "hours of 3,600,000 dense steps' progress, best plan"
    assert priced.rows[0][-1] == figure(1e3 * best.step_s / best.efficiency)
    # with the objective "step" all efficiencies are 1
    timed = [replace(each, efficiency=1.0) for each in outcomes]
    assert re.match(r"Beside FP32, steps of the best plan are \d.*× as fast on 8 ", simulation_report.verdict(timed))
    # nothing is said of one compressor where none helps
    harmful = [replace(each, efficiency=0.0) for each in outcomes if each.way not in ("FP32", BEST)]
    given = replace(best, way=GIVEN, efficiency=1.0)
    assert "Of one" not in simulation_report.verdict([given, *harmful, best])
    # lines keep their panel, however many and long their names
    many = [replace(each, way=f"{number} {each.way * 3}") for each in outcomes for number in range(3)]
    wider = [replace(each, cluster=Cluster(16, 1e9 / 8)) for each in many]
    drawn = simulation_report.picture([*many, *wider], "resnet50")
    drawn.draw_without_rendering()
    assert drawn.axes[0].get_position().height * drawn.get_figheight() > 2


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
@pytest.mark.parametrize("links", [["1gbit"], ["1gbit", "10gbit", "25gbit", "100gbit"]], ids=["one", "four"])
def test_what_is_written_behind_bars_ends_in_their_panel(links: list[str], narrow: bool) -> None:
    """Where a bar was long, its efficiency was cut off at the picture's edge, or ran into the next panel."""
    clusters = [Cluster(8, Link.parse(link).bits_per_second / 8) for link in links]
    outcomes = [each for cluster in clusters for each in simulate(profile("resnet50"), cluster)]
    drawn = simulation_report.picture(outcomes, "resnet50", narrow)
    drawn.draw_without_rendering()
    written = [(text.get_window_extent(), panel.bbox) for panel in drawn.axes for text in panel.texts]
    assert len(written) == len(outcomes)
    assert all(text.x1 <= panel.x1 + 1 for text, panel in written)


def test_the_verdict_stands_above_everything(written: dict[str, Path]) -> None:
    found = {name: re.search('class="verdict">([^<]*)<', path.read_text()) for name, path in written.items()}
    sentences = {name: match[1] for name, match in found.items() if match}
    assert sentences["suite"] == (
        "In 2 of 2 set-ups something is faster than plain DDP, most of all "
        "topk:0.01@0mb on resnet50, 8 images of 64 x 64 a rank, 2 ranks, 1gbit: 2.00× faster."
    )
    assert sentences["trainings"] == "lm: topk:0.01+residual was where dense ended 4.00× as fast."
    assert sentences["timeline"] == "As fast as can be."
    said = r"Beside FP32, the best plan makes .*× the progress on 8 ranks at 1gbit, with groups of \d+ .*"
    assert re.fullmatch(said, sentences["simulation"])
