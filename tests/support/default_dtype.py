"""A job of every row of `cases.py` under one default dtype, in a process of its own, for the fault may end the process:
prints a digest of the means and the state of each row.

`python tests/support/default_dtype.py bfloat16 FIRST EVERY`: one row in EVERY, from the FIRST on.
"""

import sys
from collections.abc import Iterator
from hashlib import sha256

import torch
from torch import Tensor

from tests.support.cases import CASES, Case
from tests.support.harness import SMALL, draw, job, plan_of, slots_of

SLOTS = slots_of(SMALL | {"half.weight": torch.empty(9, 11, dtype=torch.bfloat16)})
STEPS = [
    [[*own[:-1], own[-1].bfloat16()] for own in draw(SLOTS, 2, step)]
    for step in range(3)
]  # fmt: skip


def digest(tensors: list[Tensor]) -> str:
    """Of types, shapes and bits."""
    found = sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def means_and_states(case: Case) -> Iterator[Tensor]:
    """The means of all steps, the last after states were saved and loaded, and the states after it."""
    plan = plan_of(SLOTS, case.compressor, case.memory, case.communicator)
    with job(plan, SLOTS, world=2) as running:
        for grads in STEPS[:-1]:
            yield from (mean for own in running.step(grads) for mean in own)
        running.load(running.states())
        yield from (mean for own in running.step(STEPS[-1]) for mean in own)
        yield from (state[key] for state in running.states() for key in sorted(state) if "//" in key)


if __name__ == "__main__":
    torch.set_default_dtype(getattr(torch, sys.argv[1]))
    for case in CASES[int(sys.argv[2]) :: int(sys.argv[3])]:
        print(case, file=sys.stderr, flush=True)  # the last is the one that ended the process
        print(case, digest([*means_and_states(case)]), flush=True)
