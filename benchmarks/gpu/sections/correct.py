"""Recorded turns against computed ones, to the bit, for every row of the table, on two ranks that are threads.

Each row makes two jobs, of which one records. Both get the same gradients: some that are not finite, one that is
absent, a step that the user takes back, then another plan, their own checkpoint loaded, and gradients in new places.
"""

from contextlib import nullcontext

import torch
from torch import Tensor

from benchmarks.gpu.device import Device
from benchmarks.gpu.jobs import SLOTS, WORLD, cases, job, plan, steps_until_recorded
from benchmarks.gpu.rows import Rows
from gradwire.ops.backend import in_use
from tests.support.cases import Case
from tests.support.fixed import Fixed
from tests.support.harness import draw
from tests.support.pretend_cuda import PretendedGPU, real
from tests.support.states import earlier


def run(rows: Rows, device: Device) -> None:
    """The section `correct`."""
    with rows.attempt("the kernels' trial", most_s=100):
        in_use()
    for case in rows.each(cases(device), needs_s=2.0):
        with rows.attempt(case):
            compare(rows, device, case)
        device.free()


def compare(rows: Rows, device: Device, case: Case) -> None:
    """Adds a row: whether both jobs have given the same."""
    computed, _ = outcome(device, case, records=False)
    found, status = outcome(device, case, records=True)
    differ = differences(computed, found)
    was_recorded = status.startswith("1 of 1 ")
    cells = {"what": str(case), "ok": not differ and was_recorded is case.recordable, "recorded": status}
    # kernels that are not deterministic differ from themselves
    if differ:
        again, _ = outcome(device, case, records=False)
        cells |= {"different": differ, "computed twice": differences(computed, again) or "equal"}
    rows.add("recorded against computed", **cells)


def differences(ours: list[Tensor], theirs: list[Tensor]) -> str:
    """In how many tensors they differ, and by how much at most; "" where all bits are equal."""
    if len(ours) != len(theirs):
        return f"{len(ours)} and {len(theirs)} tensors"
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if not torch.equal(a.nan_to_num(7), b.nan_to_num(7))]
    most = max((float((a.double() - b.double()).abs().nan_to_num(torch.inf).max()) for a, b in pairs), default=0.0)
    return f"{len(pairs)} of {len(ours)}, by {most:.2g}" if pairs else ""


def outcome(device: Device, case: Case, *, records: bool) -> tuple[list[Tensor], str]:
    """All means and, in the end, all state, on the CPU; then what is recorded."""
    seen: list[Tensor] = []
    with job(device, plan(case), records=records) as running:
        script(device, running, case, seen)
        for state in running.states():
            seen += [real(tensor).cpu() for _, tensor in sorted(earlier(state).items())]
        status = running.runtimes[0].stats().recorded
    return seen, status


def script(device: Device, running: Fixed, case: Case, seen: list[Tensor]) -> None:
    """Drives a job through steps, a skip, a new plan, a checkpoint and new places; adds all means to `seen`."""
    enough, number = steps_until_recorded(case, WORLD), 0

    def steps(count: int, *, bad: int = -1, absent: int = -1) -> None:
        nonlocal number
        for step in range(count):
            grads: list[list] = [list(own) for own in draw(SLOTS, WORLD, number)]
            if step == bad:
                grads[number % WORLD][2] = torch.full(SLOTS[2].shape, torch.inf)
            if step == absent:
                grads[0][0] = None
            means = running.step(grads)
            assert all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(*means, strict=True)), (
                f"the ranks' means differ in step {number}"
            )
            seen.extend(mean.cpu() for mean in means[0])
            number += 1

    # replayed steps, with one that counts for no rank, one that is computed, and one that is taken back
    steps(enough + 4, bad=enough, absent=enough + 2)
    with nullcontext() if device.is_gpu else PretendedGPU():
        running.skip()
    steps(2)
    # all in one group from now on; then a checkpoint, and other places
    running.install(plan(case, groups=1))
    steps(enough, bad=1)
    running.load(running.states())
    steps(enough)
    running.begin()
    steps(enough + 2, bad=enough)
