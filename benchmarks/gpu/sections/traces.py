"""Traces of three steps, in all threads, for chrome://tracing or Perfetto: what the training thread's time goes to."""

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.device import Device
from benchmarks.gpu.models import model_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.trainings import Training

NAMES = ["no communication", "TopK 1 %", "ACP-SGD r4", "PowerSGD 1/6 in 4 bits"]
STEPS = 3


def run(rows: Rows, device: Device) -> None:
    """The section `traces`."""
    model = model_of("bert")
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * device.is_gpu]
    for name in rows.each(NAMES[: device.size(99, 2)], needs_s=6):
        with rows.attempt(name):
            training = Training(device, model, name).warm_up()
            training.card.bytes_per_s = 25e9 / 8
            everywhere = _ExperimentalConfig(profile_all_threads=True)
            with profile(activities=activities, experimental_config=everywhere) as found:
                for _ in range(STEPS):
                    training.step()
                device.synchronize()
            path = rows.folder / f"trace_{NAMES.index(name)}.json.gz"
            found.export_chrome_trace(str(path))
            rows.add("traces", what=name, file=path.name, recorded=training.recorded.split(";")[0])
            training.close()
            del training, found
        device.free()
