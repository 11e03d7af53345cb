"""A matrix game between plans and critical chains, by which the search finds the weights of its lower bounds.

One player chooses a plan, the other a chain (a weighting of `bounds`); the first pays the length of the plan's step by
that chain. The matrix has the plans and chains found so far. The best mix of chains is found by regret matching+
(Tammelin 2014), which goes on from where it was when a plan and its longest chain are added: double oracle (McMahan,
Gordon and Blum, ICML 2003).
"""

import numpy as np

from gradwire.schedule.bounds import Bounds, Edges
from gradwire.schedule.costs import Array

STEPS = 100
"""Rounds of regret matching for each mix."""


class Game:
    """Matrix game between plans and chains, solved by regret matching."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        # plans against chains: their costs, and how much each was regretted
        self.plans: Edges | None = None
        self.first: list[int] = []
        self.chains: list[Array] = []
        self.completed: list[Array] = []
        self.costs = np.zeros((0, 0))
        self.regret = np.zeros(0), np.zeros(0)

    def add(self, plan: Edges, chain: Array) -> None:
        """Another plan and another chain, or mean of chains."""
        # what each plan comes to by the new chain, and the new plan by each
        completed = self.bounds.completed(chain)
        column = self.bounds.of(self.plans, self.first, completed[:, None]) if self.plans else []
        self.first.append(len(self.plans.start) if self.plans else 0)
        self.plans = self.plans.followed_by(plan) if self.plans else plan
        self.chains.append(chain)
        self.completed.append(completed)
        row = self.bounds.of(plan, [0], np.stack(self.completed, 1))
        # a column for the new chain, a row for the new plan
        self.costs = np.block([[self.costs, np.reshape(column, (-1, 1))], [np.reshape(row, (1, -1))]])
        self.regret = np.append(self.regret[0], 0), np.append(self.regret[1], 0)

    def mix(self) -> Array:
        """The mix of chains that bounds every plan about equally, by regret matching+."""
        plans, chains = (regret + 1e-9 for regret in self.regret)
        # as `sum` of an array, whose call takes longer than adding up
        total, add = np.zeros(len(chains)), np.add.reduce
        for step in range(STEPS):
            # regrets of the plans, which minimise
            weights = chains / add(chains)
            cost = self.costs @ weights
            plans = np.maximum(plans + plans @ cost / add(plans) - cost, 0) + 1e-15
            # regrets of the chains, which maximise
            gain = plans @ self.costs / add(plans)
            chains = np.maximum(chains + gain - gain @ weights, 0) + 1e-15
            # linear averaging
            total += step * chains / add(chains)
        self.regret = plans, chains
        return (total / total.sum() * np.stack(self.chains, -1)).sum(-1)
