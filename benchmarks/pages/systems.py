"""Pages about published systems: their figures beside those that are measured or simulated here."""

from collections import Counter
from math import inf
from statistics import median

from benchmarks.losses.gravac import RIVALS, over_best
from benchmarks.pages.adtopk_losses import adtopk
from benchmarks.pages.page import Page, Shown
from benchmarks.pages.published_on_gpu import on_a_gpu, waiting
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import middle, span


def cupcake() -> Page:
    found = load("published")["rows"]
    cells = dict.fromkeys((row["cluster"], row["model"]) for row in found)
    rows, off = [], list[float]()
    for cell in cells:
        own = [row for row in found if (row["cluster"], row["model"]) == cell]
        pairs = [(row["published"]["Cupcake"], row["simulated"]["Cupcake"]) for row in own]
        dense = own[0]["published"]["FP32"], own[0]["simulated"]["FP32"]
        rows.append([*cell, *(f"{theirs:.0f}/{ours:.0f}" for theirs, ours in (dense, *pairs))])
        off += [abs(theirs - ours) for theirs, ours in (dense, *pairs)]
    columns = ["cluster", "model", "FP32", *dict.fromkeys(row["compressor"] for row in found)]
    factors = Shown(["published"], columns, rows, "Scaling factors in percent, published/simulated.")
    return Page(
        "cupcake", "Cupcake (MLSys 2023)",
        f"Simulated scaling factors are {median(off):.0f} points off (at most {max(off):.0f}); over the best bucket "
        f"search gains {_over('best bucket', 'DGC')}.",
        [factors, *_cupcake_gains(), *on_a_gpu("cupcake")],
        waiting("cupcake", "gradwire train --suite cupcake --data FOLDER"),
    )  # fmt: skip


def _cupcake_gains() -> list[Shown]:
    def over(name: str, rival: str) -> str:
        return f"{max(row[name]['Cupcake'] / row[name][rival] for row in load('published')['rows']):.2f}x"

    simulated = [
        ["over no compression", "2.03x", over("simulated", "FP32")],
        ["over HiPress", "1.79x", over("simulated", "HiPress")],
    ]
    measured = [
        ["over layer by layer", "", _over("layer-wise", "DGC", "EFSignSGD")],
        ["over the default groups", "", _over("default", "DGC", "EFSignSGD")],
        ["over the best bucket, DGC", "1.12x", _over("best bucket", "DGC")],
        ["over the best even split, DGC", "1.18x", _over("best even split", "DGC")],
    ]
    note = "Four models, 2 ranks, 1 Gbit/s; DGC and EFSignSGD."
    return [
        Shown([], ["gain at most", "published", "simulated"], simulated),
        Shown(["ablation"], ["gain", "published (most)", "measured"], measured, note),
    ]


def _over(rule: str, *compressors: str) -> str:
    """The measured gain of the searched plan over another rule's, with these compressors."""
    rows = [row for row in load("ablation")["rows"] if row["compressor"] in compressors]
    return middle(row["ms"][rule] / row["ms"]["searched"] for row in rows) + "x"


def gravac() -> Page:
    rows, over, sooner = [], [], []
    cells = load("gravac")["rows"]
    for case, link in dict.fromkeys((row["case"], row["link"]) for row in cells):
        own = [row for row in cells if (row["case"], row["link"]) == (case, link)]
        took, best = [row["took"] for row in own], [over_best(row) for row in own]
        over.append(median(best))
        times = [_sooner(took, rival) for rival in RIVALS]
        sooner.append(times[RIVALS.index("10x")])
        shown = (f"{each:.1f}x" if each < inf else "never" for each in times)
        rows.append([case.replace("rate ", ""), link, middle(best), *shown])
    columns = ["training", "dense's wire", "time over best static", "sooner than dense", *RIVALS[1:]]
    twice = load("multilevel")["rows"]
    nested = [(row["first_ms"] + row["apart_ms"]) / row["both_ms"] for row in twice]
    levels = ["over compressing twice", "1.1–1.83x", f"{span(nested, '.2f')}x"]
    near = sum(times <= 1.05 for times in over)
    seeds = Counter(case for case, _ in {(row["case"], row["seed"]) for row in cells})
    note = (
        "Computed times to dense's loss + 1%; dense's wire takes so many times its computation; "
        f"{span(seeds.values(), '')} seeds. Where the rate falls: min_gain=0.95. Accordion: PowerSGD r4/r1. Published "
        "over 10x: 4.32, 1.95, 6.67; over Accordion: 1.94, 5.63, 2.06."
    )
    return Page(
        "gravac", "GraVAC (2023)",
        f"{span(sooner)} times as fast as static 10x, within 1.05 of the best static factor in {near} of {len(over)} "
        "cells.",
        [
            Shown(["gravac"], columns, rows, note),
            Shown(["multilevel"], ["", "published", "measured"], [levels]), *on_a_gpu("gravac"),
        ],
        waiting("gravac", "gradwire train --suite gravac --data FOLDER"),
    )  # fmt: skip


def _sooner(took: list[dict[str, float | None]], rival: str) -> float:
    """How many times sooner GraVAC is at the goal than a rival, the median; infinite where the rival never is, 0 where
    GraVAC is not."""
    return median((each[rival] or inf) / own if (own := each["GraVAC"]) else 0.0 for each in took)


def acpsgd() -> Page:
    names = ("steps_100mbit", "steps_1gbit", "steps_4ranks")
    found = [row for name in names for row in load(name)["rows"]]

    def over(rival: str, link: str, ranks: int) -> str:
        cells = [row["ms"] for row in found if (row["link"], row["ranks"]) == (link, ranks) and rival in row["ms"]]
        return middle(ms[rival]["median"] / ms["acpsgd:4"]["median"] for ms in cells) + "x" if cells else ""

    cells = dict.fromkeys((row["link"], row["ranks"]) for row in found)
    rows = [
        [link, str(ranks), over("torch powersgd:4", link, ranks), over("ddp", link, ranks)] for link, ranks in cells
    ]
    faster = [row["ms"]["torch powersgd:4"]["median"] / row["ms"]["acpsgd:4"]["median"] for row in found]
    columns = ["link", "ranks", "over torch's PowerSGD", "over DDP"]
    return Page(
        "acpsgd", "ACP-SGD (ICDCS 2023)",
        f"{span(faster, '.2f')} times as fast as torch's PowerSGD (published 1.43 on average), "
        f"{over('ddp', '1gbit', 2)} DDP at 1 Gbit/s (published 4.06).",
        [
            Shown([], columns, rows, "Rank 4; models and origins in [steps](steps.md); published: 8 to 64 GPUs."),
            *on_a_gpu("acpsgd"),
        ],
        waiting("acpsgd", "gradwire bench --suite acpsgd"),
    )  # fmt: skip


SYSTEMS = (cupcake, gravac, adtopk, acpsgd)
