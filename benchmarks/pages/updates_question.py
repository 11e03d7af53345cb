"""The page about exchanges that are updates, beside optimizers of whole gradients."""

from statistics import mean

from benchmarks.losses.updates import COLUMNS, NAMES, at_best, lines
from benchmarks.pages.page import Page, Shown
from benchmarks.shared.provenance import load


def updates() -> Page:
    rows = load("updates")["rows"]
    best = {name: at_best(rows, name) for name in NAMES}
    loss = {name: mean(row["held_out"] for row in own) for name, own in best.items()}
    over = [f"{NAMES[name]} {loss[name] / loss['adamw'] - 1:+.1%}" for name in NAMES if name != "adamw"]
    verdict = f"Held-out loss beside AdamW's: {', '.join(over)}."
    first, seeds = best["adamw"][0], max(map(len, best.values()))
    note = (
        f"GPT of {first['parameters'] / 1e6:.2f}M, 4 ranks, {first['steps']} steps, each at the best of its rates "
        f"(multiples of AdamW's 1e-3, signs' 3e-4, matrices' 0.02), {'one seed' if seeds == 1 else f'{seeds} seeds'}. "
        "Under Dion the embedding travels in float32."
    )
    shown = Shown(["updates"], COLUMNS, list(lines(rows)), note)
    return Page("updates", "What do DeMo and Dion lose?", verdict, [shown])
