"""The card, and the versions of all that computes."""

from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import Rows
from gradwire.ops.backend import in_use


def run(rows: Rows, device: Device) -> None:
    """The section `versions`."""
    rows.add("versions", **device.facts(), kernels=in_use())
