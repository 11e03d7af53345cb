"""`gradwire doctor`: all is well on ranks that are well, and each planted fault is named with what helps."""

import re

import pytest

from gradwire.cli import main
from gradwire.report import doctor_report
from tests.support.ranks import ended_ranks

pytestmark = pytest.mark.usefixtures("forked_ranks")

MODULE = "tests.lab.doctored"
SECTIONS = ["versions", "environment", "store", "process groups", "collectives", "latency and bandwidth", "kernels",
            "training"]  # fmt: skip


def words(report: str) -> str:
    """A report without its line breaks."""
    return " ".join(report.split())


def test_all_is_well_on_two_ranks_that_it_starts_itself(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--ranks", "2", "--device", "cpu"]) == 0
    report, progress = capfd.readouterr()
    assert report.startswith("gradwire doctor: 2 ranks on 1 host, cpu\n")
    assert re.findall(r"^\w.*$", report, re.MULTILINE)[1:] == [*SECTIONS, "all is well"]
    assert all(f"checking: {section}" in progress for section in SECTIONS)
    assert max(map(len, report.splitlines())) <= doctor_report.WIDTH
    assert "WRONG" not in report


@pytest.mark.long
def test_all_is_well_on_four_ranks_of_two_hosts() -> None:
    first, *others = ended_ranks(["-m", MODULE], 4, imports=[MODULE], env={"LOCAL_WORLD_SIZE": "2"})
    assert first.code == 0, first
    assert "groups: gloo: all ranks, inside hosts, between hosts" in first.out
    assert all(f"{axis}: 15 collectives" in first.out for axis in ("all ranks", "inside hosts", "between hosts"))
    assert [(ended.code, ended.out) for ended in others] == [(0, "")] * 3


FAULTS = {
    "other_torch": ["WRONG torch: the ranks differ: ", "2.11.0 on rank 1 (host b)", "install the same torch"],
    "harmful_variable": [
        "WRONG TORCH_NCCL_ASYNC_ERROR_HANDLING [rank 1 (host ", "does harm", "unset TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ],
    "shared_gpu": ["WRONG one GPU for each rank: rank 0 (host ", "share one", "torch.cuda.set_device(int("],
    "wrong_sums": ["WRONG all ranks [rank 1 (host ", "wrong results: all-reduce of 1 elements", "GLOO_SOCKET_IFNAME"],
    "no_library": ["WRONG CPU [rank 1 (host ", "the library does not load", "unset GRADWIRE_KERNELS"],
    "lost": ["WRONG ranks: rank 1 (host ", "did not come to the end of this check (store) in 2 s", "firewall"],
    "stuck": [
        "WRONG collectives [rank 1 (host ", "did not end within 4 s", "in the all-reduce of 1 elements along all ranks",
        "- latency and bandwidth: not checked",
    ],
    "raises": ["the card has melted", "rank 1 (host ", "- training: not checked"],
}  # fmt: skip


TOGETHER = ["other_torch harmful_variable no_library", "shared_gpu", "wrong_sums", "lost", "stuck", "raises"]


@pytest.mark.parametrize("faults", TOGETHER)
def test_planted_faults_are_named_with_what_helps(faults: str) -> None:
    first, second = ended_ranks(["-m", MODULE, *faults.split()], 2, imports=[MODULE])
    assert (first.code, second.code, second.out) == (1, 0, ""), (first, second)
    wanted = [text for fault in faults.split() for text in FAULTS[fault]]
    assert [text for text in wanted if text not in words(first.out)] == [], first.out
    assert "all is well" not in first.out


MISTAKES = [
    (["--hosts", "2"], "give --link"),
    (["--ranks", "3", "--hosts", "2", "--link", "1gbit"], "3 ranks do not fill 2 hosts"),
    (["--ranks", "0"], "--ranks"),
    (["--device", "tpu"], "device is cpu or cuda"),
    (["--device", "cuda", "--link", "1gbit"], "around an emulated link"),
    (["--link", "fast"], "'fast' is not a link"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_a_mistake_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *options]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out
