"""The table of what published systems measured, from a run in small; and that the sections run only where named."""

from typing import Any

import pytest

from benchmarks.gpu.gpu import default
from benchmarks.gpu.setups import SETUPS, V100_S, Setup
from benchmarks.pages.published_on_gpu import table
from gradwire.lab.models import MODELS


def found(*setups: Setup) -> dict[str, Any]:
    """What a run keeps of these set-ups, where each way takes as many times no communication as it has letters."""
    steps = [
        {"model": setup.label, "what": way, "of none": float(len(way))} for setup in setups for way in setup.ways[:2]
    ]
    return {"set-up": [{"model": setup.label, "gbit": 10.0, "faster": 4.0} for setup in setups], "steps": steps}


def test_what_was_measured_stands_beside_what_was_published():
    server, servers = SETUPS["cupcake"][0], SETUPS["cupcake"][-1]
    shown = table("cupcake", found(server, servers), "gpu_cupcake")
    assert shown.columns == ["", "resnet50, 32 x 224, 8 ranks", "bert-base, 8 x 128, 64 ranks"]
    rows = {way: cells for way, *cells in shown.rows}
    # DGC's published scaling factors: Cupcake 77.5 and 70.0 %, GRACE 39.4 and 41.5
    assert rows["dgc:0.01@planned"] == ["16.00 (1.29)", "16.00 (1.43)"]
    assert rows["dgc:0.01@0mb"] == ["12.00 (2.54)", "12.00 (2.41)"]
    # not measured
    assert rows["dense"] == ["", ""]
    assert "4.0x, 4.0x" in shown.note


def test_a_set_up_is_scaled_as_a_whole():
    (setup, *_) = SETUPS["acpsgd"]
    fast = setup.scaled(10.0)
    assert (fast.ranks, fast.gpus_per_host) == (32, 4)
    assert fast.bytes_per_s == 10 * setup.cluster.bytes_per_s
    assert fast.latency_s == setup.cluster.latency_s / 10
    # 64 images at 356 a second
    assert round(1e3 * setup.v100_s) == 180


@pytest.mark.parametrize("model", V100_S)
def test_targets_are_among_a_models_outputs(model: str):
    from benchmarks.gpu.models import published  # which imports transformers

    setup = next(each for setups in SETUPS.values() for each in setups if each.model == model)
    _, targets = published(setup.model, setup.batch, setup.size).batch(False)
    assert int(targets.max()) < MODELS[model].outputs


def test_sections_of_published_systems_run_where_they_are_named():
    assert not {*default()} & {*SETUPS}
