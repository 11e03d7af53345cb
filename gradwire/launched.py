"""Recognize that this process is already one rank of a job."""

import os
import re
from collections.abc import Mapping, MutableMapping

_PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIRST_HOST = re.compile(r"([^,\[]+)(?:\[(\d+))?")
# an array's jobs, numbered one after another, may share a host
_PORTS_BETWEEN_STEPS = 997


def is_launched() -> bool:
    """Whether torchrun, `srun` or the user started this process as one rank of a job.

    That is so when RANK and WORLD_SIZE are set. In a step of SLURM's `srun` they are set here, with
    LOCAL_RANK, MASTER_ADDR and MASTER_PORT, from SLURM's own variables. A batch script itself, which also has
    SLURM_PROCID, is not a rank, nor is a step's only task, such as the shell of `srun --pty` or of `salloc`.
    """
    in_a_step = {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= os.environ.keys()
    if in_a_step and int(tasks := _tasks_of_step(os.environ)) > 1:
        _translate_slurm(os.environ, tasks)
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys()


def started() -> tuple[int, int]:
    """This rank and the number of ranks, of those that were launched. Raises ValueError, naming it, for a variable of
    torch's env:// that is missing, or no number."""
    for name in _PLACE:
        if (value := os.environ.get(name)) is None:
            raise ValueError(f"{name} is not set: start ranks with torchrun, or set {', '.join(_PLACE)}")
        if name != "MASTER_ADDR" and not value.isdecimal():
            raise ValueError(f"{name}={value!r} is no number: start ranks with torchrun, or set {name} to one")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank >= world:
        raise ValueError(f"RANK={rank} is none of {world} ranks, which are 0 to {world - 1}: set WORLD_SIZE to all")
    return rank, world


def gpu_of_rank(gpus: int) -> int:
    """The index of this rank's GPU among the `gpus` that it sees: LOCAL_RANK. One that sees a GPU alone, by
    CUDA_VISIBLE_DEVICES or SLURM's --gpus-per-task, has that."""
    return int(os.environ.get("LOCAL_RANK", "0")) if gpus > 1 else 0


def _tasks_of_step(environment: Mapping[str, str]) -> str:
    """How many tasks this step of SLURM has. In the shell of `salloc -n 8`, SLURM_NTASKS says those of the job."""
    return environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")


def _translate_slurm(environment: MutableMapping[str, str], tasks: str) -> None:
    """Set torch's variables, except those that the user has set."""
    first_host = _first_host(environment["SLURM_STEP_NODELIST"])
    # one port for all ranks of the step, without asking any
    job, step = (int(environment.get(f"SLURM_{name}_ID", "0")) for name in ("JOB", "STEP"))
    # the same on every rank
    port = 20000 + (job + _PORTS_BETWEEN_STEPS * step) % 20000
    environment.setdefault("RANK", environment["SLURM_PROCID"])
    environment.setdefault("WORLD_SIZE", tasks)
    environment.setdefault("LOCAL_RANK", environment.get("SLURM_LOCALID", "0"))
    environment.setdefault("MASTER_ADDR", first_host)
    environment.setdefault("MASTER_PORT", str(port))


def _first_host(nodelist: str) -> str:
    """'gpu[07-09,12],login' -> 'gpu07'."""
    match = _FIRST_HOST.match(nodelist)
    if not match:
        raise ValueError(f"SLURM_STEP_NODELIST={nodelist!r} names no host: set MASTER_ADDR")
    return match[1] + (match[2] or "")
