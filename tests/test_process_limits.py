"""The cores and the memory that control groups leave a process, of both versions, in containers and outside."""

import os
from math import inf
from pathlib import Path

import pytest

from gradwire import process_limits
from gradwire.process_limits import cores, memory_bytes, quota

GIB = 1 << 30
NO_LIMIT = str((1 << 63) - 4096)
"""Of memory, in version 1."""
V1 = "12:cpuset:/\n4:memory:{own}\n3:cpu,cpuacct:{own}\n1:name=systemd:{own}\n0::{own}\n"
CASES = {
    "no groups": (None, {}, inf, 8 * GIB),
    "no limits": ("0::/", {"cgroup.procs": "1"}, inf, 8 * GIB),
    "a container's, by a namespace": ("0::/", {"cpu.max": "150000 100000", "memory.max": str(GIB)}, 1.5, GIB),
    "the smallest on the way up": (
        "0::/pods/pod/one",
        {
            "pods/pod/one/cpu.max": "max 100000",
            "pods/pod/cpu.max": "50000 100000",
            "pods/cpu.max": "400000 100000",
            "pods/pod/one/memory.max": "max",
            "pods/memory.max": str(2 * GIB),
            "pods/other/cpu.max": "1000 100000",
        },
        0.5,
        2 * GIB,
    ),
    "version 1": (
        V1.format(own="/slurm/job"),
        {
            "cpu/slurm/job/cpu.cfs_quota_us": "-1",
            "cpu/slurm/job/cpu.cfs_period_us": "100000",
            "cpu/slurm/cpu.cfs_quota_us": "200000",
            "cpu/slurm/cpu.cfs_period_us": "50000",
            "memory/slurm/job/memory.limit_in_bytes": str(3 * GIB),
            "memory/memory.limit_in_bytes": NO_LIMIT,
        },
        4.0,
        3 * GIB,
    ),
    "version 1, in a container that sees its own as the root": (
        V1.format(own="/docker/0123"),
        {
            "cpu/cpu.cfs_quota_us": "100000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(GIB),
        },
        1.0,
        GIB,
    ),
    "more than there is": ("0::/", {"cpu.max": "9900000 100000", "memory.max": str(1 << 50)}, 99.0, 8 * GIB),
}


@pytest.mark.parametrize("case", CASES)
def test_the_smallest_limit_counts(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, files, allowed, memory = CASES[case]
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    if groups:
        (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(process_limits, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(process_limits, "_HIERARCHIES", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 8 * GIB // 4096}.__getitem__)
    assert quota().cores == allowed
    assert cores() == min(8, allowed)
    assert memory_bytes() == memory
    # whose limit it is
    assert (quota().group == 0) == (allowed == inf)


@pytest.mark.parametrize(("own", "parents", "expected"), [(8, 8, 2), (2, 8, 2), (4, 8, 2), (2, 16, 2), (4, 16, 4)])
def test_a_process_that_is_bound_to_cores_divides_its_parents(
    own: int, parents: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four: it divided its own, which were its share already."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(parents if process == os.getppid() else own))
    monkeypatch.setattr(process_limits, "quota", lambda: process_limits.Quota(inf, 0))
    assert process_limits.cores_of_one(4) == expected
    # all are in one control group
    monkeypatch.setattr(process_limits, "quota", lambda: process_limits.Quota(4, 7))
    assert process_limits.cores_of_one(4) == 1


def test_here_there_are_some() -> None:
    assert 0 < cores() <= len(os.sched_getaffinity(0))
    assert GIB // 8 < memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
