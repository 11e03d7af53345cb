"""One choice per layer under a common budget: a multiple-choice knapsack by dynamic programming."""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
FRONT = 64
"""Partial sums that are kept per layer: of more the best by value plus price times cost, at the price at which each
layer's own best choice would just fit the budget (Lagrange's multiplier)."""


def allocate(values: Matrix, costs: Matrix, budget: float) -> list[int]:
    """The choice per layer with the least sum of `values` (layers, choices) whose `costs` add up to at most `budget`;
    the cheapest of each layer where nothing does. Exact as long as at most 64 partial sums are kept."""
    # infeasible: the cheapest choices
    if costs.min(1).sum() > budget:
        return costs.argmin(1).tolist()
    rest = np.append(costs.min(1)[::-1].cumsum()[::-1], 0)  # the least cost of the layers behind
    price = _price(values, costs, budget)
    cost, value = np.zeros(1), np.zeros(1)
    # layer by layer, extend the partial sums and keep their Pareto front
    steps: list[tuple[NDArray[np.intp], int]] = []
    for layer, (own_values, own_costs) in enumerate(zip(values, costs, strict=True)):
        all_costs = (cost[:, None] + own_costs).ravel()
        all_values = (value[:, None] + own_values).ravel()
        kept = _pareto_front(all_costs, all_values, budget * (1 + 1e-12) - rest[layer + 1], price)
        cost, value = all_costs[kept], all_values[kept]
        steps.append((kept, len(own_costs)))
    # trace the best sum back through the layers
    at, chosen = len(value) - 1, []
    for kept, choices in reversed(steps):
        at, choice = divmod(int(kept[at]), choices)
        chosen.append(choice)
    return chosen[::-1]


def _pareto_front(costs: Matrix, values: Matrix, budget: float, price: float) -> NDArray[np.intp]:
    """The Pareto front within the budget: indices by ascending cost, and so descending value."""
    # within the budget, by ascending cost
    order = np.argsort(costs, kind="stable")
    order = order[costs[order] <= budget]
    # sums of less value than all cheaper ones
    sorted_values = values[order]
    before = np.minimum.accumulate(np.concatenate(([np.inf], sorted_values[:-1])))
    front = order[sorted_values < before]
    # too many: keep the best at the price
    if len(front) <= FRONT:
        return front
    priced = values[front] + price * costs[front]
    priced[0] = -np.inf  # the cheapest leaves budget for all that follow
    return front[np.sort(np.argpartition(priced, FRONT)[:FRONT])]


def _price(values: Matrix, costs: Matrix, budget: float) -> float:
    """Lagrange's multiplier: the value of a unit of cost, found by bisection."""
    finite = np.isfinite(values) & np.isfinite(costs)
    values, costs = np.where(finite, values, 1e200), np.where(finite, costs, 1e200)
    # bisect the logarithm of the price
    layers = np.arange(len(costs))
    low, high = -60.0, 60.0
    for _ in range(50):
        middle = (low + high) / 2
        choice = (values + np.exp(middle) * costs).argmin(1)
        low, high = (middle, high) if costs[layers, choice].sum() > budget else (low, middle)
    return float(np.exp(high))
