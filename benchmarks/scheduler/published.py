"""Cupcake's published scaling factors beside those that the scheduler's model gives for the published set-up.

    python benchmarks/scheduler/published.py

Scaling factor: T1 / Tn in percent. FP32 is Horovod in its buckets of 128 MB, GRACE compresses each tensor by itself,
HiPress only those for which that is faster by its cost model, Cupcake is the optimal grouping with every tensor
compressed. All of them in the paper's regime: encoding interrupts backward. One number is calibrated: PCIe's
speed, from the published 56 ms that float32 adds to ResNet-50's 48 ms on 8 GPUs. That makes one cell of the table exact
and all the others predictions.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import numpy as np

from benchmarks.scheduler.compute_stream import ComputeStream
from benchmarks.shared.provenance import save
from benchmarks.shared.tables import markdown
from gradwire.lab.built_in_profiles import PCIE, profile
from gradwire.schedule import baselines, evaluate, search
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.costs import ZERO_COST, Affine, CostTable
from gradwire.schedule.problem import GroupChoice, Option, Problem
from gradwire.schedule.profiled import Candidate
from gradwire.wire import depth

BUCKET_BYTES = 128 << 20
POINTS = 10
KEPT = "kept"
"""A verdict: the systems are in the published order."""
SHARDED = "Cupcake, each GPU compressing a part"

ETHERNET = Cluster(64, 25e9 / 8, gpus_per_host=8, inside_bytes_per_s=150e9, inside_latency_s=10e-6)
"""Eight servers of eight GPUs, at the line's 25 Gb/s and NVLink's 150 GB/s."""
CLUSTERS = {"8 GPUs, PCIe": PCIE, "64 GPUs, 25 Gb/s": ETHERNET}

BITS = {"Rand-k": 0.64, "DGC": 0.64, "EFSignSGD": 1.0, "OneBit": 1.0}
"""That Cupcake's code sends for an element, by compressor, in the order of the built-in profile."""

# Figures 6 and 7, read off; Rand-k, DGC, EFSignSGD, OneBit
PUBLISHED: dict[tuple[str, str], tuple[float, dict[str, list[float]]]] = {
    ("8 GPUs, PCIe", "resnet50"): (46.3, {
        "GRACE": [48.2, 39.4, 36.1, 31.9], "HiPress": [60.9, 52.2, 48.8, 44.6], "Cupcake": [79.3, 77.5, 76.4, 73.2]}),
    ("8 GPUs, PCIe", "resnet101"): (61.5, {
        "GRACE": [61.0, 52.1, 53.1, 45.3], "HiPress": [72.1, 63.2, 64.3, 56.5], "Cupcake": [85.6, 83.4, 80.5, 77.2]}),
    ("8 GPUs, PCIe", "bert-base"): (46.8, {
        "GRACE": [57.3, 49.2, 45.0, 32.9], "HiPress": [66.5, 58.2, 54.2, 41.9], "Cupcake": [77.4, 73.7, 70.0, 67.4]}),
    ("64 GPUs, 25 Gb/s", "resnet50"): (38.3, {
        "GRACE": [44.2, 35.6, 32.3, 28.0], "HiPress": [55.8, 47.1, 43.7, 39.5], "Cupcake": [74.2, 73.0, 72.4, 70.7]}),
    ("64 GPUs, 25 Gb/s", "resnet101"): (54.8, {
        "GRACE": [57.1, 49.2, 51.4, 44.2], "HiPress": [65.4, 57.6, 59.8, 52.6], "Cupcake": [80.0, 78.3, 76.0, 72.1]}),
    ("64 GPUs, 25 Gb/s", "bert-base"): (36.5, {
        "GRACE": [50.1, 41.5, 36.1, 24.6], "HiPress": [63.7, 55.1, 50.5, 38.2], "Cupcake": [72.8, 70.0, 66.0, 61.9]}),
}  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rows = [row for cluster, model in PUBLISHED for row in cells(cluster, model)]
    print(report(rows))
    save("published.json", rows=rows)


def cells(cluster: str, model: str) -> list[dict[str, Any]]:
    """One row for each compressor: simulated and published percent of each system."""
    dense, systems = PUBLISHED[cluster, model]
    rows: list[dict[str, Any]] = []
    for index, codec in enumerate(BITS):
        job = problem(model, CLUSTERS[cluster], codec)
        simulated = scaling(job) | {SHARDED: optimal(problem(model, CLUSTERS[cluster], codec, sharded=True))}
        published = {"FP32": dense} | {name: values[index] for name, values in systems.items()}
        rows.append(
            {"cluster": cluster, "model": model, "compressor": codec, "simulated": simulated, "published": published}
        )
    return rows


def scaling(job: Problem) -> dict[str, float]:
    """The four systems' scaling factors in percent, from the modelled step times."""
    regime = ComputeStream()
    seconds = {
        "FP32": baselines.buckets(job, regime, 0, BUCKET_BYTES).step_s,
        "GRACE": baselines.layer_wise(job, regime, 1).step_s,
        "HiPress": evaluate(job, hipress(job), regime).step_s,
    }
    return {name: percent(job, step_s) for name, step_s in seconds.items()} | {"Cupcake": optimal(job)}


def optimal(job: Problem) -> float:
    return percent(job, search(replace(job, options=job.options[1:]), ComputeStream(), 0.01).step_s)


def percent(job: Problem, step_s: float) -> float:
    return 100 * (job.around_s + float(job.ready_s[-1])) / step_s


def hipress(job: Problem) -> tuple[GroupChoice, ...]:
    """Each tensor a group of its own, compressed where that is faster."""
    dense, codec = job.options
    n = job.elements
    compressed_s = codec.encode(n) + codec.wire(n) + codec.local(n) + codec.decode(n)
    return tuple(GroupChoice((slot,), int(compressed_s[slot] < dense.wire(n[slot]))) for slot in range(len(n)))


def problem(model: str, cluster: Cluster, codec: str, sharded: bool = False) -> Problem:
    """The published job as Cupcake runs it: option 0 is Horovod's float32 around one ring, option 1 compresses every
    tensor, vectors too. What a server's GPUs have summed is compressed by one of them or, `sharded`, by each a part:
    the paper does not say which."""
    job = profile(model)
    # dense comes first, and is no curve
    candidate = job.candidates[1 + list(BITS).index(codec)]
    return Problem(
        ready_s=np.array([slot.ready_s for slot in job.slots]),
        elements=np.array([float(slot.numel) for slot in job.slots]),
        small=np.zeros(len(job.slots), bool),
        options=(dense(cluster), compressed(cluster, candidate, BITS[codec], sharded)),
        around_s=job.forward_s + job.optimizer_s,
    )


def dense(cluster: Cluster) -> Option:
    """Horovod's float32: a ring's bytes, and a tree's latency, up and down."""
    seconds, latency_s = link(cluster)
    peers = cluster.ranks if cluster.hosts == 1 else cluster.hosts
    wire = Affine(2 * depth(peers) * latency_s, 8 * (cluster.ranks - 1) / cluster.ranks * seconds)
    return Option(ZERO_COST, wire, ZERO_COST, lossless=True)


def compressed(cluster: Cluster, candidate: Candidate, bits: float, sharded: bool) -> Option:
    peers, inside = (cluster.ranks, 1) if cluster.hosts == 1 else (cluster.hosts, cluster.gpus_per_host)
    seconds, latency_s = link(cluster)
    # an all-gather on the wire; inside a host the gradient is summed and the mean handed on
    wire = Affine((peers - 1) * latency_s, (peers - 1) * bits / 8 * seconds)
    around = 2 * (inside - 1)
    local = Affine(around * cluster.inside_latency_s, around / inside * 4 / cluster.inside_bytes_per_s)
    local, shares = (local if inside > 1 else ZERO_COST), (inside if sharded else 1)
    return Option(shared(candidate.encode, shares), wire, shared(candidate.decode, shares), local=local)


def link(cluster: Cluster) -> tuple[float, float]:
    """Seconds per byte and per message of the link between ranks or hosts."""
    if cluster.hosts == 1:
        return 1 / cluster.inside_bytes_per_s, cluster.inside_latency_s
    return 1 / cluster.bytes_per_s, cluster.latency_s


def shared(cost: CostTable, shares: int) -> CostTable:
    """The cost where each of so many GPUs has a part."""
    return CostTable(tuple(shares * size for size in cost.sizes), cost.values)


def order(percents: dict[str, float]) -> list[str]:
    return sorted(percents, key=lambda name: percents[name])


def report(rows: list[dict[str, Any]]) -> str:
    """A table of simulated percents beside the published ones, and how far they are apart."""
    names = list(rows[0]["published"])
    cells: list[list[str]] = []
    misses: list[str] = []
    for row in rows:
        ours, theirs = {name: row["simulated"][name] for name in names}, row["published"]
        words = [f"{ours[name]:.1f} ({theirs[name]:.1f}, {ours[name] - theirs[name]:+.1f})" for name in names]
        about = [row[name] for name in ("cluster", "model", "compressor")]
        misses += [f"{' '.join(about)} {name} {ours[name] - theirs[name]:+.1f}" for name in names if missed(row, name)]
        cells.append([*about, *words, KEPT if order(ours) == order(theirs) else " < ".join(order(ours))])
    different = {
        name: np.mean([abs(row["simulated"][name] - row["published"][name]) for row in rows]) for name in names
    }
    points = ", ".join(f"{name} {points:.1f}" for name, points in different.items())
    sharded = [row["simulated"][SHARDED] for row in rows if row["cluster"] != "8 GPUs, PCIe"]
    kept = sum(verdict == KEPT for *_, verdict in cells)
    return f"""{markdown(("cluster", "model", "compressor", *names, "order"), cells)}

Mean difference in points: {points}
{SHARDED} on 64 GPUs: {min(sharded):.1f} to {max(sharded):.1f}.
Order kept in {kept} of {len(rows)}. {len(misses)} cells miss {POINTS} points: {"; ".join(misses)}."""


def missed(row: dict[str, Any], name: str) -> bool:
    return abs(row["simulated"][name] - row["published"][name]) > POINTS


if __name__ == "__main__":
    main()
