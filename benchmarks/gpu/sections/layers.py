"""Layer by layer against planned groups, recorded and computed: the claim of Cupcake."""

import gradwire as gw
from benchmarks.gpu.device import Device
from benchmarks.gpu.models import model_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.sections.steps import Way, measure

NAMES = ["TopK 1 %", "EFSignSGD"]


def run(rows: Rows, device: Device) -> None:
    """The section `layers`."""
    ways = list[Way]()
    for name in NAMES:
        for remark, options in {", recorded": {}, ", computed": {"records": False}}.items():
            ways += [
                Way(name, f", planned{remark}", options),
                Way(name, f", layer by layer{remark}", options | {"groups": gw.groups.of(megabytes=0)}),
                Way(name, f", one group{remark}", options | {"groups": gw.groups.of(count=1)}),
            ]
    measure(rows, device, model_of("resnet")._replace(link_gbit=(10.0,)), ways)
