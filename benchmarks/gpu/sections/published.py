"""Measurements of the published systems on clusters of GPUs, repeated on one GPU, which plays one of their ranks.

This card computes faster than a V100, so latencies and links are as much faster: as a step without communication is.
So `of none` can be compared with the published ratios: 100 / `of none` is Cupcake's scaling factor in percent.
"""

from benchmarks.gpu.device import Device
from benchmarks.gpu.models import Model, published
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.sections.steps import NONE, Way, measure
from benchmarks.gpu.setups import SETUPS, Setup
from benchmarks.gpu.trainings import Training


def run(rows: Rows, device: Device) -> None:
    """The sections `cupcake`, `acpsgd`, `adtopk` and `gravac`."""
    setups = SETUPS[rows.section]
    setups = setups[:: len(setups) - 1] if device.tiny else setups
    for number, setup in enumerate(setups):
        # an equal share of the time for each
        share = rows.shared(len(setups) - number)
        model, faster = published(setup.model, setup.batch, setup.size), 0.0
        with share.attempt(f"alone{setup.where}"):
            faster = _faster(device, model, setup)
        if not faster:
            continue
        cluster = setup.scaled(faster)
        gbit = 8e-9 * cluster.bytes_per_s
        share.add("set-up", model=setup.label, gbit=8e-9 * setup.cluster.bytes_per_s, faster=faster)
        ways = [Way(text, where=setup.where) for text in ("dense", *setup.ways)]
        measure(share, device, model._replace(name=setup.label, link_gbit=(gbit,)), ways, cluster)


def _faster(device: Device, model: Model, setup: Setup) -> float:
    """How many times as fast as a V100 this card computes a step."""
    training = Training(device, model, NONE).warm_up()
    took = training.timed(0.0 if device.tiny else 0.5)
    training.close()
    del training
    device.free()
    return 1e3 * setup.v100_s / took.ms
