"""The page about exchanges that are updates, beside optimizers of whole gradients: losses, and step times."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks.losses.updates import COLUMNS, NAMES, at_best, lines
from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load
from benchmarks.shared.tables import LINKS
from benchmarks.steps.optimizers import SHOWN, megabytes, milliseconds, speed

UPDATES = "demo", "dion-4", "dion-16"


def updates() -> Page:
    rows, links = load("updates")["rows"], load("optimizers")["rows"]
    best = {name: at_best(rows, name) for name in NAMES}
    loss = {name: mean(row["held_out"] for row in own) for name, own in best.items()}
    over = [f"{NAMES[name]} {loss[name] / loss['adamw'] - 1:+.1%}" for name in NAMES if name != "adamw"]
    slowest = links[-1]
    faster = [f"{NAMES[name]} {speed(slowest, name):.1f}x" for name in UPDATES]
    verdict = f"Beside AdamW, loss: {', '.join(over)}; speed over {LINKS[slowest['link']]}: {', '.join(faster)}."
    return Page("updates", "What do DeMo and Dion lose and gain?", verdict, [_losses(rows, best), _times(links)])


def _losses(rows: Sequence[dict[str, Any]], best: dict[str, list[dict[str, Any]]]) -> Shown:
    first, seeds = best["adamw"][0], max(map(len, best.values()))
    note = (
        f"Held-out, GPT of {first['parameters'] / 1e6:.2f}M, 4 ranks, {first['steps']} steps, each at its best rate "
        f"(times 1e-3, signs 3e-4, matrices 0.02), {'one seed' if seeds == 1 else f'{seeds} seeds'}. "
        "Under Dion the embedding travels in float32."
    )
    return Shown(["updates"], COLUMNS, list(lines(rows)), note)


def _times(links: Sequence[dict[str, Any]]) -> Shown:
    columns = ["", *(f"{LINKS[row['link']]}: ms" for row in links), "MB sent a step"]
    cells = [
        [
            shown,
            *(f"{milliseconds(row, name):.0f}" for row in links),
            f"{megabytes(links[0], name):.2f}",
        ]
        for name, shown in SHOWN.items()
    ]
    parameters, ranks = links[0]["parameters"], links[0]["ranks"]
    note = f"Steps of a GPT of {parameters / 1e6:.1f}M, {ranks} ranks; AdamW and Muon under DDP."
    return Shown(["optimizers"], columns, cells, note)
