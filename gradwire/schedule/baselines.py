"""Plans by a rule, in the interface of the search: one option for all large slots."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from gradwire.schedule.costs import Array
from gradwire.schedule.problem import GroupChoice, Problem, assemble
from gradwire.schedule.regimes import Regime
from gradwire.schedule.search import Solution, evaluate

BUCKET_BYTES = 25 << 20
"""As DDP's by default."""


def layer_wise(problem: Problem, regime: Regime, option: int) -> Solution:
    """The plan with a group for every slot."""
    return cut(problem, regime, option, range(1, problem.pieces + 1))


def one_group(problem: Problem, regime: Regime, option: int) -> Solution:
    """The plan with all slots in one group, after backward."""
    return cut(problem, regime, option, [problem.pieces])


def buckets(problem: Problem, regime: Regime, option: int, size_bytes: float = BUCKET_BYTES) -> Solution:
    """Groups of `size_bytes` of float32 gradient or more: DDP's rule."""
    return cut(problem, regime, option, _ends(problem.views[option].elements, size_bytes))


def whole_buckets(problem: Problem, regime: Regime, option: int, size_bytes: float = BUCKET_BYTES) -> Solution:
    """`buckets` that hold the small slots, too, whatever the option."""
    ends = _ends(np.concatenate([[0.0], np.cumsum(problem.elements)]), size_bytes)
    # all slots between two ends, the small ones too
    groups = (GroupChoice(tuple(range(*bounds)), option) for bounds in pairwise([0, *ends]))
    return evaluate(problem, tuple(groups), regime)


def _ends(elements: Array, size_bytes: float) -> list[int]:
    """Ends of groups of `size_bytes` or more; `elements` are prefix sums, from 0."""
    ends: list[int] = []
    last = len(elements) - 1
    while not ends or ends[-1] < last:
        # the first slot with which a group is full
        full = elements[ends[-1] if ends else 0] + size_bytes / 4
        ends.append(min(int(np.searchsorted(elements, full, side="left")), last))
    return ends


def best_buckets(problem: Problem, regime: Regime, option: int, sizes: int = 40) -> Solution:
    """The best of `sizes` bucket sizes, from the smallest that makes sense to the whole model."""
    total = 4 * float(problem.views[option].elements[-1])
    if not total:  # all slots travel dense
        return one_group(problem, regime, option)
    # sizes at equal ratios, the largest first
    tried = np.geomspace(total, max(total / 1000, 1), sizes)
    return min((buckets(problem, regime, option, size) for size in tried), key=lambda found: found.step_s)


def cut(problem: Problem, regime: Regime, option: int, ends: Iterable[int]) -> Solution:
    """The plan of one option whose groups end before these pieces."""
    return evaluate(problem, assemble(problem, [(end, option) for end in ends]), regime)
