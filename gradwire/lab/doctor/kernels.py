"""Kernels: which implementation computes, whether it computes what torch does, and why it is not another one."""

import torch

from gradwire.lab.doctor.findings import Finding
from gradwire.lab.doctor.site import Site
from gradwire.ops import native
from gradwire.ops.backend import REFERENCE, backend_for, on_gpu

CHOSEN = "GRADWIRE_KERNELS=reference"
UNSET = "unset GRADWIRE_KERNELS for faster kernels"
LIBRARY = "reinstall Gradwire where there is a C++ compiler (docs/kernels.md); unset GRADWIRE_KERNELS"
TRITON = "install the Triton that this torch wants, with a C compiler (CC) for its launcher; docs/kernels.md"
ELEMENTS, KEPT = 10_000, 100


def check(site: Site) -> list[Finding]:
    """The kernels of the CPU and, where ranks compute on GPUs, those of this rank's GPU."""
    return [_cpu(site.device.type == "cpu"), *([_gpu(site.device)] if site.device.type == "cuda" else [])]


def _cpu(needed: bool) -> Finding:
    """The library; a GPU's rank can do without one."""
    try:
        there, why = native.available(), native.reason()
    except ValueError as error:  # GRADWIRE_KERNELS names none
        return Finding("CPU", False, str(error), LIBRARY)
    if not there:
        chosen = why == CHOSEN
        return Finding("CPU", chosen or not needed, f"torch computes: {why}", UNSET if chosen else LIBRARY)
    # a trial: both implementations find the same largest elements
    vector = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0))
    largest = (ops.top_k(vector, KEPT).sort().values for ops in (backend_for(vector), REFERENCE))
    if not torch.equal(*largest):
        return Finding("CPU", False, f"the library ({why}) finds other largest elements than torch", LIBRARY)
    return Finding("CPU", True, f"the library computes ({why}); its trial is right")


def _gpu(device: torch.device) -> Finding:
    found, why = on_gpu(device)
    if found:
        return Finding("GPU", not why, why or "Triton computes; its trial is right")
    chosen = why == CHOSEN
    return Finding("GPU", chosen, f"torch computes: {why}", UNSET if chosen else TRITON)
