"""What computed the steps of a report, in words."""

FOR_GPUS = (
    "A CPU computed these steps. A GPU takes a small part of that time, and then the link decides more: measure on "
    "such a GPU, with --device cuda."
)


def this_machines(device: str) -> str:
    """This machine's processor of a type of device."""
    return f"this machine's {processor(device)}"


def processor(device: str) -> str:
    """The processor of a type of device."""
    return "CPU" if device == "cpu" else "GPU"


def doubt(device: str, gpus_per_host: int) -> str:
    """A sentence where a CPU computes for hosts of GPUs, else nothing."""
    return FOR_GPUS if device == "cpu" and gpus_per_host > 1 else ""
