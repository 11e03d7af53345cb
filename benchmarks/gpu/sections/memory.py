"""Bytes of GPU memory a parameter, beyond those of training without communication: held between steps, and at the peak.

"Held" counts tensors and the memory of recorded graphs. "Peak" is the most that torch had allocated within a step.
"""

from benchmarks.gpu.configurations import CONFIGURATIONS, PEERS
from benchmarks.gpu.device import Device
from benchmarks.gpu.models import model_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.trainings import Training

NONE, *_ = PEERS
PEER = "torch PowerSGD r4"


def run(rows: Rows, device: Device) -> None:
    """The section `memory`."""
    model, none = model_of("bert"), None
    for name in rows.each([NONE, PEER, *CONFIGURATIONS][: device.size(99, 3)], needs_s=3):
        with rows.attempt(name):
            device.free()
            before = device.memory().held
            training = Training(device, model, name).warm_up()
            found, count = device.memory(), training.parameters
            for _ in range(device.size(3, 1)):
                training.step()
            device.synchronize()
            most = device.memory()
            own = [(number - before) / count for number in (found.held, most.peak, most.reserved)]
            training.close()
            none = none or own
            more = [a - b for a, b in zip(own, none, strict=True)]
            rows.add(
                "bytes a parameter", what=name, held=own[0], peak=own[1], reserved=own[2], parameters=count,
                **{"held more": more[0], "peak more": more[1]}, recorded=training.recorded.split(";")[0],
            )  # fmt: skip
            del training
