"""The scheduler's search: equal to brute force on random problems in every regime, and how long it takes; on Cupcake's
own jobs as well, DGC with every tensor compressed, in the paper's regime.

    python benchmarks/scheduler/search.py [problems]

Random problems (500 for each regime by default) have up to 16 slots and one option, 12 and two or 10 and three; costs
are affine, flat and then linear, or any that do not fall. Prints Markdown tables and writes
benchmarks/results/search.json. Seconds are CPU seconds of one thread, which other load disturbs least.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np

from benchmarks.scheduler import published
from benchmarks.scheduler.compute_stream import ComputeStream
from benchmarks.shared.provenance import save
from gradwire.schedule import Affine, CostTable, Option, Problem, Regime, search
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.costs import Array
from gradwire.schedule.edges import load_of
from tests.support.schedule_cases import REGIMES, random_problem

EPS = 0.01
RANKS = 4
MESSAGE_S = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=int, nargs="?", default=500, help="of each regime")
    problems = parser.parse_args().problems
    print("| regime | problems | of 12 slots or more | equal to brute force |\n|---|---|---|---|")
    equal = [equality(regime, problems) for regime in REGIMES]
    print("\n| job | slots | large | link MB/s | regime | CPU seconds | step s | proven within |\n" + "|---" * 8 + "|")
    rows = [
        seconds("random", network(slots, bytes_per_s, share), bytes_per_s, regime)
        for slots, share in ((400, 3), (400, 1), (4000, 3))
        for bytes_per_s in (1.25e7, 1.25e8, 1.25e9)
        for regime in REGIMES
    ]
    rows += [cupcakes(model, published.CLUSTERS[cluster]) for cluster, model in published.PUBLISHED]
    save("search.json", equal=equal, seconds=rows)


def equality(regime: Regime, problems: int) -> dict:
    equal = large = 0
    for seed in range(problems):
        problem = random_problem(seed, most=16)
        best = every_plan(problem, regime)
        equal += abs(search(problem, regime).step_s - best) <= 1e-9 * best
        large += len(problem.ready_s) >= 12
    print(f"| {regime} | {problems} | {large} | {equal} |", flush=True)
    return {"regime": str(regime), "problems": problems, "of_12_slots_or_more": large, "equal": equal}


def every_plan(problem: Problem, regime: Regime) -> float:
    """The shortest step of all plans, by brute force on whole arrays."""
    states = [np.zeros((regime.dims + 1, 1))]
    for k in range(1, problem.pieces + 1):
        states.append(np.concatenate(list(groups_to(problem, regime, states, k)), axis=1))
    *state, deferred = states[-1]
    backward_s = float(problem.ready_s[-1])
    ends = regime.finish(tuple(state), backward_s)
    if (tail := deferred > 0).any():
        state = tuple(values[tail] for values in state)
        load = load_of(problem, problem.tail, 0, 0, deferred[tail])
        ends[tail] = regime.finish(regime.step(state, backward_s, load, backward_s), backward_s)
    return problem.around_s + float(ends.min())


def groups_to(problem: Problem, regime: Regime, states: list[Array], k: int) -> Iterator[Array]:
    """The states after a group that ends at piece k, from every start and with every option."""
    backward_s = float(problem.ready_s[-1])
    for start in range(k):
        *state, deferred = states[start]
        for number, option in enumerate(problem.options):
            view = problem.views[number]
            left = deferred * 0 if option.lossless else deferred + problem.deferred[k] - problem.deferred[start]
            if view.count[k] == view.count[start]:
                yield np.stack([*state, left])
                continue
            load = load_of(problem, number, start, k, deferred if option.lossless else 0 * deferred)
            yield np.stack([*regime.step(tuple(state), view.ready_s[k], load, backward_s), left])


def seconds(job: str, problem: Problem, bytes_per_s: float, regime: Regime, eps: float = EPS) -> dict:
    start = time.process_time()
    found = search(problem, regime, eps)
    took_s = time.process_time() - start
    slots = len(problem.ready_s)
    print(
        f"| {job} | {slots} | {problem.pieces} | {bytes_per_s / 1e6:g} | {regime} | {took_s:.2f} | {found.step_s:.4f} "
        f"| {found.bound - 1:.2%} |",
        flush=True,
    )
    return {
        "job": job, "slots": slots, "large": problem.pieces, "bytes_per_s": bytes_per_s, "regime": str(regime),
        "seconds": took_s, "step_s": found.step_s, "bound": found.bound,
    }  # fmt: skip


def cupcakes(model: str, cluster: Cluster) -> dict:
    """The optimum of a published job."""
    job = published.problem(model, cluster, "DGC")
    compressed = replace(job, options=job.options[1:])
    return seconds(model, compressed, 1 / published.link(cluster)[0], ComputeStream(), eps=0)


def network(slots: int, bytes_per_s: float, share: int = 3) -> Problem:
    """A network for four ranks: one in `share` slots is a weight of 4 thousand to 4 million elements, the others small.
    Its four options cost about as much as dense, 8 bits, top-k 1 % and rank 4 on a CPU."""
    rng = np.random.default_rng(0)
    small = np.arange(slots) % share != 0
    elements = np.where(small, 2.0 ** rng.integers(6, 11, slots), 2.0 ** rng.uniform(12, 22, slots)).round()
    work = elements + 2e5 * rng.random(slots)
    factors = 32 * np.sqrt(elements)

    def summed(bytes_per_element: float) -> Affine:
        return Affine(2 * (RANKS - 1) * MESSAGE_S, 2 * (RANKS - 1) / RANKS * bytes_per_element / bytes_per_s)

    def gathered(bytes_per_element: float) -> Affine:
        return Affine((RANKS - 1) * MESSAGE_S, (RANKS - 1) * bytes_per_element / bytes_per_s)

    options = (
        Option(codec(2e-5, 0.3e-9), summed(4), codec(2e-5, 0.2e-9), lossless=True),
        Option(codec(1e-4, 2e-9), gathered(1), codec(1e-4, 3e-9)),
        Option(codec(2e-4, 3e-9), gathered(0.06), codec(1e-4, 0.6e-9)),
        Option(codec(3e-4, 2e-9), Affine(2 * summed(1).fixed, summed(1).per_unit), codec(2e-4, 0.7e-9), units=factors),
    )
    return Problem(np.cumsum(work) / work.sum() * 0.4, elements, small, options, around_s=0.2)


def codec(floor_s: float, per_element_s: float) -> CostTable:
    """Costs that are flat, then linear."""
    sizes = np.array([1, 4e3, 6.4e4, 1e6, 1.6e7, 6.4e7])
    return CostTable.of(sizes, np.maximum(floor_s, floor_s / 2 + per_element_s * sizes))


if __name__ == "__main__":
    main()
