"""Whether the host waits for the GPU in steady steps of one rank of eight: torch raises where it does.

Every row of the table, with turns that are recorded and with turns that are computed; peers send what this rank does.
"""

import gradwire as gw
from benchmarks.gpu.device import Device
from benchmarks.gpu.jobs import SLOTS, cases, job, plan, steps_until_recorded
from benchmarks.gpu.rows import Rows
from gradwire.ops.backend import in_use
from tests.support.cases import Case
from tests.support.harness import draw

WORLD, STEADY = 8, 4


def run(rows: Rows, device: Device) -> None:
    """The section `waits`."""
    with rows.attempt("the kernels' trial", most_s=100):
        in_use()
    for case in rows.each(cases(device), needs_s=1.0):
        with rows.attempt(case):
            rows.add("the host waits for nothing", what=str(case), ok=True, recorded=steady(device, case))


def steady(device: Device, case: Case) -> str:
    """Raises where the host waits; returns what is recorded."""
    grads, status = draw(SLOTS, 1, 0), ""
    for records in (False, True):
        with job(device, plan(case), records=records, transports=[gw.SizeRecorder(WORLD)]) as running:
            for _ in range(steps_until_recorded(case, WORLD)):
                running.step(grads)
            with device.waiting_is_an_error():
                for _ in range(STEADY):
                    running.runtimes[0].open_step()
                    running.submit(grads)
            running.finish()
            status = running.runtimes[0].stats().recorded
    return status
