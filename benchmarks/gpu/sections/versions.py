"""The card, and the versions of all that computes."""

from benchmarks.gpu.device import Device
from benchmarks.gpu.rows import Rows
from gradwire.ops.backend import in_use


def run(rows: Rows, device: Device) -> None:
    """The section `versions`."""
    rows.add("versions", **device.facts())
    # compiles kernels: without the row above nothing of a run could be kept
    with rows.attempt("the kernels' trial", most_s=100):
        rows.add("in use", kernels=in_use())
