"""Runs the scenarios of sharded models over real gloo."""

import pytest

import gradwire as gw
from gradwire.compressors import Codec
from gradwire.frontends.shard_compression import _check
from tests.processes import shards
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(shards))
def test_scenario(name, world):
    check(shards, name, world)


@pytest.mark.parametrize(
    ("gradients", "weights", "reason"),
    [
        (gw.PowerSGD(4), gw.BF16(), "PowerSGD(.*) sends no shards"),
        (gw.QSGD(), gw.ACPSGD(4), "ACPSGD(.*) sends no shards"),
        (gw.TopK(0.1), gw.BF16(), "TopK(.*) needs a memory for gradients"),
        (gw.QSGD(), gw.TopK(0.1), "TopK(.*) needs a memory, which weights do not have"),
    ],
)
def test_a_codec_that_cannot_send_shards_is_told_why(gradients: Codec, weights: Codec, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*; use gw.QSGD"):
        _check(gradients, weights, None)
