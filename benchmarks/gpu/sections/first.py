"""How long first steps take where nothing was compiled before, and when Triton compiles.

Configurations follow each other in one process: a kernel that an earlier one has compiled counts for that one.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.gpu.configurations import CONFIGURATIONS
from benchmarks.gpu.device import Device
from benchmarks.gpu.models import model_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.trainings import Training

STEPS, EARLY = 20, 3
"""Nothing is compiled after the first EARLY steps."""


def run(rows: Rows, device: Device) -> None:
    """The section `first`."""
    model = model_of("bert")
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    for name in rows.each([*CONFIGURATIONS][: device.size(99, 1)], needs_s=4):
        with rows.attempt(name), compilations() as compiled:
            began = time.perf_counter()
            training = Training(device, model, name)
            device.synchronize()
            attach_s, at_attach = time.perf_counter() - began, len(compiled)
            early, seconds = at_attach, list[float]()
            for number in range(device.size(STEPS, 4)):
                began = time.perf_counter()
                training.step()
                device.synchronize()
                seconds.append(time.perf_counter() - began)
                early = len(compiled) if number < EARLY else early
            training.close()
            late = compiled[early:]
            rows.add(
                "first steps", what=name, ok=not late, **{"made and attached s": attach_s, "step 1 s": seconds[0]},
                **{"step 2 s": seconds[1], "longest after step 3 s": max(seconds[EARLY:]), "last s": seconds[-1]},
                compiled=[at_attach, early - at_attach, len(late)], late=late[:6],
            )  # fmt: skip
            del training
        device.free()


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of kernels that Triton compiles meanwhile."""
    names: list[str] = []
    try:
        from triton import knobs
    except ImportError:
        yield names
        return

    def note(*, fn: Any, **others: Any) -> None:
        names.append(fn.name)

    before, knobs.runtime.jit_post_compile_hook = knobs.runtime.jit_post_compile_hook, note
    try:
        yield names
    finally:
        knobs.runtime.jit_post_compile_hook = before
