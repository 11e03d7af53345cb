"""Plans by a rule, in the interface of the search: one option for all large slots."""

from collections.abc import Iterable

import numpy as np

from gradwire.schedule.problem import Choice, Problem, assemble
from gradwire.schedule.regimes import Regime
from gradwire.schedule.search import Solution, evaluate

BUCKET_BYTES = 25 << 20


def layer_wise(problem: Problem, regime: Regime, option: int) -> Solution:
    """Every slot a group."""
    return cut(problem, regime, option, range(1, problem.pieces + 1))


def one_group(problem: Problem, regime: Regime, option: int) -> Solution:
    """All slots in one group, after backward."""
    return cut(problem, regime, option, [problem.pieces])


def buckets(problem: Problem, regime: Regime, option: int, size_bytes: float = BUCKET_BYTES) -> Solution:
    """Groups of `size_bytes` of float32 gradient or more: DDP's rule."""
    elements = problem.views[option].elements
    ends: list[int] = []
    while not ends or ends[-1] < problem.pieces:
        full = elements[ends[-1] if ends else 0] + size_bytes / 4
        ends.append(min(int(np.searchsorted(elements, full, side="left")), problem.pieces))
    return cut(problem, regime, option, ends)


def whole_buckets(problem: Problem, regime: Regime, option: int, size_bytes: float = BUCKET_BYTES) -> Solution:
    """The same of all slots, small ones too, whatever the option: as DDP cuts them."""
    filled = np.concatenate([[0.0], np.cumsum(4 * problem.elements)])
    slots, groups = len(problem.small), list[Choice]()
    while (start := groups[-1].slots[-1] + 1 if groups else 0) < slots:
        end = min(int(np.searchsorted(filled, filled[start] + size_bytes)), slots)
        groups.append(Choice(tuple(range(start, end)), option))
    return evaluate(problem, tuple(groups), regime)


def best_buckets(problem: Problem, regime: Regime, option: int, sizes: int = 40) -> Solution:
    """The best of `sizes` bucket sizes, from the smallest that makes sense to the whole model."""
    total = 4 * float(problem.views[option].elements[-1])
    if not total:  # all slots travel dense
        return one_group(problem, regime, option)
    tried = np.geomspace(total, max(total / 1000, 1), sizes)
    return min((buckets(problem, regime, option, size) for size in tried), key=lambda found: found.step_s)


def cut(problem: Problem, regime: Regime, option: int, ends: Iterable[int]) -> Solution:
    """One option, and groups that end before these slots."""
    return evaluate(problem, assemble(problem, [(end, option) for end in ends]), regime)
