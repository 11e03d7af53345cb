"""What a process may use of its machine, by its affinity and by control groups, such as a container's."""

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

_OWN_GROUPS, _HIERARCHIES = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class Quota(NamedTuple):
    """The cores that the processes of a control group have together, and a number that no other group of the machine
    has."""

    cores: float
    group: int


def cores() -> float:
    """The cores for this process, of which a quota may leave it a part."""
    return min(len(os.sched_getaffinity(0)), quota().cores)


def cores_of_one(processes: int) -> float:
    """The cores for this process where its parent has started so many here: some of its parent's, unless this one is
    bound to fewer cores."""
    together = min(len(os.sched_getaffinity(os.getppid())), quota().cores)
    return min(len(os.sched_getaffinity(0)), together / processes)


def quota() -> Quota:
    """The smallest quota of this process's control groups; infinite, of group 0, where there is none."""
    return min(_quotas(), default=Quota(inf, 0))


def memory_bytes() -> int:
    """The bytes of memory for this process: the machine's, or what a control group leaves of them."""
    limits = [
        _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes") for folder in _own_groups("memory")
    ]
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([present, *(int(limit) for limit in limits if limit.isdecimal())])


def _quotas() -> Iterator[Quota]:
    for folder in _own_groups("cpu"):
        # version 2 has both in one file; without a quota it is "max", or in version 1 -1
        of_version_1 = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        words = _text(folder / "cpu.max") or " ".join(of_version_1)
        allowed_us, _, period_us = words.partition(" ")
        if allowed_us.isdecimal():
            yield Quota(int(allowed_us) / int(period_us), folder.stat().st_ino)


def _own_groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control groups for a controller, from its own up to the root, as far as they are
    seen from here. Version 2 has one hierarchy, version 1 one for each controller."""
    for line in _text(_OWN_GROUPS).splitlines():
        _, controllers, own = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _HIERARCHIES / controller if controllers else _HIERARCHIES
            folder = root / own.lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _text(path: Path) -> str:
    """What a file says; nothing where it is not there, or not for this process to read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
