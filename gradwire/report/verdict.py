"""Verdicts on training runs, in one sentence."""

from collections.abc import Sequence
from math import isnan, nan

from gradwire.lab.results import LARGER_IS_BETTER, Run, shown
from gradwire.report.text_table import diverged, figure, score

_POINTS, _SHARE = 0.005, 0.01
"""A run is as good as the first one within half a point of a metric from 0 to 1, or within 1 % of a loss."""


def of_training(runs: Sequence[Run], metric: str) -> str:
    """A sentence on the fastest of the runs that are as good as the first."""
    first, *others = runs
    if diverged(first):
        return f"{first.configuration} diverged{': there is nothing to compare with' if others else ''}."
    if not others:
        return f"{first.configuration} reached {shown(metric)} {score(_reached(first, metric))}."
    # of the runs that are faster, the fastest that is as good
    finished = [run for run in others if not diverged(run)]
    fast = sorted((run for run in finished if _speed(first, run) > 1), key=lambda run: -_speed(first, run))
    if not finished:
        return f"All but {first.configuration} diverged: there is nothing to compare it with."
    if not fast:
        lost = "" if finished == others else f"; {len(others) - len(finished)} of {len(others)} diverged"
        return f"Nothing was faster than {first.configuration}{lost}."
    good = [run for run in fast if as_good(_reached(first, metric), _reached(run, metric), metric)]
    if good:
        return _sentence(first, good[0], metric)
    return (
        f"None was both faster and as good as {first.configuration}; the fastest, {_sentence(first, fast[0], metric)}"
    )


def _sentence(first: Run, run: Run, metric: str) -> str:
    before, after = _reached(first, metric), _reached(run, metric)
    gain = f"{figure(_speed(first, run))}× faster than {first.configuration}"
    if isnan(before - after):
        return f"{run.configuration}: {gain}; nothing was evaluated."
    # accuracies change by points, losses and perplexities by per cent
    if metric in LARGER_IS_BETTER:
        change = f"{100 * (after - before):+.1f} points"
    elif before:
        change = f"{100 * (after - before) / abs(before):+.1f} %"
    else:
        change = f"from 0 to {figure(after)}"
    return f"{run.configuration}: {gain}, {shown(metric)} {change}."


def _speed(first: Run, run: Run) -> float:
    return first.last.wall_s / run.last.wall_s


def _reached(run: Run, metric: str) -> float:
    return (run.last.held_out or {}).get(metric, nan)


def as_good(before: float, after: float, metric: str) -> bool:
    """Whether a figure is as good as the first run's, or nearly."""
    if metric in LARGER_IS_BETTER:
        return after >= before - _POINTS
    return after <= before + _SHARE * abs(before)
