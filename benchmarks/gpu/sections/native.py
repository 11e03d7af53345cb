"""Step times with `gw.NATIVE`, and with a native plan that Auto chose, beside DDP without Gradwire. The link takes no
time."""

from benchmarks.gpu.device import Device
from benchmarks.gpu.models import model_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.sections.steps import Way, measure

NO_LIMIT_GBIT = 1e6


def run(rows: Rows, device: Device) -> None:
    """The section `native`. Ratios are to no communication, as DDP's own is."""
    ways = [Way("DDP"), Way("gw.NATIVE"), Way("Auto")]
    measure(rows, device, model_of("bert")._replace(link_gbit=(NO_LIMIT_GBIT,)), ways)
