"""Layer by layer against planned groups, recorded and computed: the claim of Cupcake."""

from benchmarks.gpu.configurations import CONFIGURATIONS
from benchmarks.gpu.device import Device
from benchmarks.gpu.models import model_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.sections.steps import Way, measure

NAMES = ["TopK 1 %", "EFSignSGD"]
GROUPS = {"planned": "", "layer by layer": "@0mb", "one group": "@1"}


def run(rows: Rows, device: Device) -> None:
    """The section `layers`."""
    ways = [
        Way(f"{name}, {kind}, {how}", f"{CONFIGURATIONS[name]}{groups}", records=how == "recorded")
        for name in NAMES
        for how in ("recorded", "computed")
        for kind, groups in GROUPS.items()
    ]
    measure(rows, device, model_of("resnet")._replace(link_gbit=(10.0,)), ways)
