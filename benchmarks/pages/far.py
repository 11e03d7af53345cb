"""Pages about sharded models and local steps, whose hosts are far apart."""

from collections import defaultdict
from itertools import chain
from statistics import mean, median
from typing import Any

from benchmarks.losses import shard_losses
from benchmarks.losses import time_to_loss as reached
from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import span


def shards() -> Page:
    names = ["shards_100mbit", "shards_1gbit"]
    links = [load(name) for name in names]
    sooner = {row["link"]: _against_native(row) for row in links}
    best = {link: max(ways, key=lambda way: median(ways[way])) for link, ways in sooner.items()}
    best_ones = (f"{span(ways[best[link]])} times ({best[link]}, {link})" for link, ways in sooner.items())
    verdict = f"{' and '.join(best_ones)} native float32's speed"
    rows = [[way, *(_shard_cell(row, way) for row in links), _bytes(links[0]["ways"][way])] for way in links[0]["ways"]]
    columns = ["", *(f"{row['link']}: ms" for row in links), "MB sent/declared"]
    note = f"GPT of {links[0]['parameters'] / 1e6:.1f}M, 2 hosts of 2 ranks."
    timed = Shown(names, columns, rows, note)
    return Page("shards", "How fast is FSDP2 between hosts?", f"{verdict}.", [timed])


def _against_native(row: dict[str, Any]) -> dict[str, list[float]]:
    """The speed of each of Gradwire's ways over native float32, turn by turn."""
    turns = {way: [median(ms) for ms in own["ms"]] for way, own in row["ways"].items()}
    dense = turns["native float32"]
    return {
        way: [theirs / ours for theirs, ours in zip(dense, own, strict=True)]
        for way, own in turns.items()
        if not way.startswith(("native", "nothing"))
    }


def _shard_cell(row: dict[str, Any], way: str) -> str:
    took, dense = (median(chain(*row["ways"][name]["ms"])) for name in (way, "native float32"))
    return f"{took:.0f} ({dense / took:.1f}x)"


def _bytes(way: dict[str, Any]) -> str:
    return "/".join(f"{way[key] / 1e6:.2f}" for key in ("measured", "declared"))


def losses_on_shards() -> Page:
    found = load("shard_losses")
    rows = found["rows"]
    seeds = len({row["seed"] for row in rows})
    lines = shard_losses.cells(rows)
    off = max(lines, key=lambda line: abs(float(line[3])))
    same = " and ".join(dict.fromkeys(line[-1] for line in lines))
    verdict = (
        f"Their means are within {off[3].lstrip('+-')} of DDP's ({off[0]}; its seeds differ by {off[4]}), replicas "
        f"{same}."
    )
    note = f"GPT of 137k, 2 hosts of 2 ranks, {found['steps']} steps, {seeds} seeds; at equal bytes between hosts."
    shown = Shown(["shard_losses"], shard_losses.COLUMNS, lines, note)
    return Page("shard_losses", "Are losses on shards DDP's?", verdict, [shown])


def local_steps() -> Page:
    rows = load("local_steps")["rows"]
    # the longest trainings
    longest = max((row["steps"], row["ranks"]) for row in rows)
    runs = [row for row in rows if (row["steps"], row["ranks"]) == longest]
    found = {
        name: _mean_of([run for run in runs if run["name"] == name])
        for name in dict.fromkeys(run["name"] for run in runs)
    }
    dense, diloco = found["dense"], found["diloco-15"]
    cells = [
        [name, f"{row['loss']:.3f}", _fewer(dense, row)]
        for name, row in sorted(found.items(), key=lambda pair: pair[1]["bytes"], reverse=True)
    ]
    sparse = min((row for name, row in found.items() if name.startswith("sparse")), key=lambda row: row["loss"])
    side = "below" if diloco["loss"] < dense["loss"] else "above"
    verdict = (
        f"DiLoCo ends {side} dense's loss with {_fewer(dense, diloco)} fewer bytes; SparseLoCo at best "
        f"{sparse['loss'] / diloco['loss'] - 1:+.1%} of DiLoCo's, with {_fewer(dense, sparse)}."
    )
    seeds = len({run["seed"] for run in runs})
    what = f"GPT of {dense['parameters'] / 1e3:.0f}k, {dense['ranks']:.0f} ranks, {dense['steps']:,.0f} steps"
    note = f"{what}, {_seeds(seeds)}; the first number is steps a round; single: one replica with all data."
    shown = Shown(["local_steps"], ["configuration", "held-out loss", "fewer bytes"], cells, note)
    return Page("local_steps", "What do local steps save?", verdict, [shown])


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"means of {count} seeds"


def _mean_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The figures of a configuration, means over its seeds."""
    return {key: mean(run[key] for run in runs) for key in ("loss", "bytes", "parameters", "ranks", "steps")}


def _fewer(dense: dict[str, Any], row: dict[str, Any]) -> str:
    return f"{dense['bytes'] / row['bytes']:.0f}x"


def streaming() -> Page:
    found = load("streaming")
    turns = found["turns"]
    idle, waited = (100 * mean(turn[key] for turn in turns) for key in ("idle", "waited"))
    shares = {"wire idle": "idle", "training waited": "waited", "outer steps and waits": "outer"}
    rows = [[name, span((100 * turn[key] for turn in turns), ".1f") + "%"] for name, key in shares.items()]
    every = f"H = {2 * turns[0]['period']}, delay {turns[0]['delay']}"
    note = f"{found['ranks']} hosts, {found['bits']} bits, {found['link']}, GPT of 1.7M, 2 fragments, {every}."
    verdict = f"The wire is idle {idle:.0f}% of the time, and training waits {waited:.0f}%."
    shown = Shown(["streaming"], ["", "of the time"], rows, note)
    return Page("streaming", "Does streaming hide the wire?", verdict, [shown])


SIZES = {128: "0.5M", 280: "2M"}
"""Parameters by width."""


def time_to_loss() -> Page:
    columns, soonest, seeds = [""], list[str](), set[int]()
    rows: dict[str, list[str]] = defaultdict(list)
    for width, size in SIZES.items():
        curves, times = map(load, reached.results(width))
        seeds |= {run["seed"] for run in curves["runs"]}
        links = {found["link"]: reached.cells(found["seconds"], curves["runs"]) for found in times["links"]}
        columns += [f"{size}: steps", *(f"{link}: {column}" for link in links for column in ("ms", "sooner"))]
        soonest += [f"{_soonest(lines)} ({size}, {link})" for link, lines in links.items()]
        for lines in zip(*links.values(), strict=True):
            rows[lines[0][0]] += [lines[0][3], *(line[column] for line in lines for column in (2, 5))]
    names = [name for width in SIZES for name in reached.results(width)]
    note = f"GPT, 4 hosts, {_seeds(len(seeds))}."
    shown = Shown(names, columns, [[name, *own] for name, own in rows.items()], note)
    question = "How much sooner is dense's loss + 1% reached far apart?"
    return Page("time_to_loss", question, f"{', '.join(soonest)}.", [shown])


def _soonest(lines: list[list[str]]) -> str:
    return f"{max(float(line[5].removesuffix('x')) for line in lines if line[5] != 'not'):.0f}x"


FAR = (shards, losses_on_shards, local_steps, streaming, time_to_loss)
