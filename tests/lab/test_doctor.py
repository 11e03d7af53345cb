"""`gradwire doctor`: all is well on ranks that are well, and each planted fault is named with what helps."""

import re
import sys
from socket import create_server
from types import ModuleType, SimpleNamespace

import pytest
import torch

from gradwire.cli import main
from gradwire.lab.doctor import collectives, environment, joining, kernels, rank_groups
from gradwire.lab.doctor.facts import Facts, facts_here, hosts_of, names_of
from gradwire.lab.doctor.findings import Finding, merged
from gradwire.lab.doctor.site import Site
from gradwire.lab.launch import rank_job
from gradwire.report import doctor_report
from tests.support.kernel_cases import needs_library
from tests.support.ranks import ended_ranks

pytestmark = pytest.mark.usefixtures("forked_ranks")

MODULE = "tests.lab.doctored"
SECTIONS = ["versions", "environment", "store", "process groups", "collectives", "latency and bandwidth", "kernels",
            "training"]  # fmt: skip


def words(report: str) -> str:
    """A report without its line breaks."""
    return " ".join(report.split())


@needs_library
def test_all_is_well_on_two_ranks_that_it_starts_itself(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--ranks", "2", "--device", "cpu"]) == 0
    report, progress = capfd.readouterr()
    assert report.startswith("gradwire doctor: 2 ranks on 1 host, cpu\n")
    assert re.findall(r"^\w.*$", report, re.MULTILINE)[1:] == [*SECTIONS, "all is well"]
    assert progress.startswith("starting 2 ranks over loopback\n")
    assert max(map(len, report.splitlines())) <= doctor_report.WIDTH
    assert "WRONG" not in report


@needs_library
@pytest.mark.long
def test_all_is_well_on_four_ranks_of_two_hosts() -> None:
    first, *others = ended_ranks(["-m", MODULE], 4, imports=[MODULE], env={"LOCAL_WORLD_SIZE": "2"})
    assert first.code == 0, first
    assert "groups: gloo: all ranks, inside hosts, between hosts" in first.out
    assert all(f"{axis}: 15 collectives" in first.out for axis in ("all ranks", "inside hosts", "between hosts"))
    assert [(ended.code, ended.out) for ended in others] == [(0, "")] * 3


@pytest.mark.parametrize("command", ["doctor", "bench dense"])
@pytest.mark.parametrize(("host", "why"), [("127.0.0.1", "Connection refused"), ("no-host.invalid", "[Errno -")])
def test_a_store_that_cannot_be_reached_is_named_with_the_reason(
    host: str, why: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took torch three times PATIENCE_S, or half an hour, and its reason was that time."""
    for module in (joining, rank_job):
        monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert main([*command.split(), "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert f"cannot reach the store at {host}:{port}: " in said
    assert why in said


FAULTS = {
    "other_torch": ["WRONG torch: the ranks differ: ", "2.11.0 on rank 1 (host b)", "install the same torch"],
    "harmful_variable": [
        "WRONG TORCH_NCCL_ASYNC_ERROR_HANDLING [rank 1 (host ", "does harm", "unset TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ],
    "shared_gpu": ["WRONG one GPU for each rank: rank 0 (host ", "share one", "torch.cuda.set_device(int("],
    "wrong_sums": ["WRONG all ranks [rank 1 (host ", "wrong results: all-reduce of 1 elements", "GLOO_SOCKET_IFNAME"],
    "no_library": ["WRONG CPU [rank 1 (host ", "the library does not load", "unset GRADWIRE_KERNELS"],
    "lost": ["environment WRONG meeting: rank 1 (host ", "did not come to the end of this check within 8 s"],
    "stuck": [
        "WRONG collectives [rank 1 (host ", "did not end within 8 s", "in the all-reduce of 1 elements along all ranks",
        "latency and bandwidth - not checked: the process groups do not work",
    ],
    "late": ["environment WRONG not checked: the checks before it took ", "while the hosts are idle"],
    "raises": ["the card has melted", "rank 1 (host ", "training - not checked"],
}  # fmt: skip


TOGETHER = ["other_torch harmful_variable no_library", "shared_gpu", "wrong_sums", "lost", "late", "raises",
            pytest.param("stuck", marks=pytest.mark.long)]  # fmt: skip


@pytest.mark.parametrize("faults", TOGETHER)
def test_planted_faults_are_named_with_what_helps(faults: str) -> None:
    first, second = ended_ranks(["-m", MODULE, *faults.split()], 2, imports=[MODULE])
    assert (first.code, second.code, second.out) == (1, 0, ""), (first, second)
    wanted = [text for fault in faults.split() for text in FAULTS[fault]]
    assert [text for text in wanted if text not in words(first.out)] == [], first.out
    assert "all is well" not in first.out


@pytest.mark.long
def test_where_rank_0_is_lost_the_others_say_so() -> None:
    first, second = ended_ranks(["-m", MODULE, "first_lost"], 2, imports=[MODULE])
    assert (first.code, second.code, second.out) == (0, 1, ""), (first, second)
    assert "WRONG meeting: rank 0 (host " in words(second.err)


def site_of(everyone: list[Facts]) -> Site:
    """A site of rank 0 among ranks with these facts."""
    return Site(0, len(everyone), torch.device("cpu"), None, 1.0, everyone)


def on_gpu(rank: int, host: str, **others: str) -> Facts:
    return {"device": "cuda", "host": host, "GPU": f"H100 {rank}", "GPUs": "8", "current GPU": "0"} | others


def test_variables_that_help_on_gpus_are_hints() -> None:
    set_by_torchrun = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_DEBUG": "WARN"}
    harmful = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
    everyone = [on_gpu(0, "a", **set_by_torchrun, **harmful)]
    found = {finding.name: finding for finding in environment.check(site_of(everyone))}
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"].ok
    assert "=0" in found["TORCH_NCCL_ASYNC_ERROR_HANDLING"].remedy
    assert found["NCCL_DEBUG"].remedy == ""
    assert "NCCL_SOCKET_IFNAME" in found["NCCL_SOCKET_IFNAME"].remedy
    assert {name for name, finding in found.items() if finding.ok is False} == harmful.keys()
    assert "TORCH_DISTRIBUTED_DEBUG" not in found


@pytest.mark.parametrize(
    ("everyone", "wrong"),
    [
        ([on_gpu(0, "a"), on_gpu(0, "b")], []),
        ([on_gpu(0, "a"), on_gpu(0, "a")], ["one GPU for each rank"]),
        ([on_gpu(0, "a", LOCAL_RANK="1"), on_gpu(1, "a")], ["device"]),
        ([on_gpu(0, "a", LOCAL_RANK="1", GPUs="1"), on_gpu(1, "a", GPUs="1")], []),  # each sees its own alone
        ([on_gpu(0, "a", LOCAL_RANK="9", GPU="none"), on_gpu(1, "a")], ["device"]),
    ],
)
def test_each_rank_has_a_gpu_of_its_own_and_has_chosen_it(everyone: list[Facts], wrong: list[str]) -> None:
    found = rank_groups._gpus(site_of(everyone))
    assert [finding.name for finding in found if finding.ok is False] == wrong


def test_hosts_are_those_of_torchrun_or_have_names() -> None:
    emulated = [{"host": "vm", "LOCAL_WORLD_SIZE": "2"}] * 4
    assert (hosts_of(emulated), names_of(emulated)) == ([0, 0, 1, 1], ["vm#0", "vm#0", "vm#1", "vm#1"])
    by_slurm = [{"host": "a"}, {"host": "b"}, {"host": "b"}]
    assert (hosts_of(by_slurm), names_of(by_slurm)) == ([0, 1, 1], ["a", "b", "b"])


def test_triton_that_cannot_be_used_is_wrong_on_a_gpu() -> None:
    found = kernels._gpu(torch.device("cuda", 0))
    assert (found.ok, found.words) == (False, "torch computes: no GPU")
    assert "install the Triton" in found.remedy


def test_findings_of_many_ranks_are_few_lines() -> None:
    wrong = [Finding("a", False, "wrong")] * 7
    (found,) = merged([[Finding("a", True, "well")], *([each] for each in wrong)], ["h"] * 8)
    assert found.where.endswith("rank 5 (host h) and 2 more")
    long = Finding("a", False, "x" * 300, "set " + "Y" * 200, found.where)
    assert max(map(len, doctor_report.findings_of([long], 60).splitlines())) <= 60


MISTAKES = [
    (["--hosts", "2"], "give --link"),
    (["--hosts", "0"], "give --link"),
    (["--ranks", "4", "--hosts", "2", "--link", "loopback"], "give --link"),
    (["--hosts", "0", "--link", "1gbit"], "do not fill 0 hosts"),
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


def test_only_collectives_that_ran_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(receive=SimpleNamespace(whole=torch.zeros(1))), torch.zeros(1)
    monkeypatch.setattr(collectives, "COLLECTIVES", dict.fromkeys(collectives.COLLECTIVES, lambda *facts: made))
    site, axis = SimpleNamespace(device=torch.device("cpu")), SimpleNamespace(world=1, run=lambda op: None)
    found = collectives._on_axis(site, "all ranks", axis)  # pyright: ignore[reportArgumentType]
    assert found.words == "12 collectives of 1 ranks are right: all-reduce, all-gather, all-to-all, broadcast"


def test_triton_is_found_whatever_its_distribution_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is pytorch-triton or triton-rocm beside some builds of torch."""
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.9.9+rocm"))  # pyright: ignore
    assert facts_here(torch.device("cpu"))["Triton"] == "3.9.9+rocm"
    # there is none, or a folder of that name
    for missing in (None, ModuleType("triton")):
        monkeypatch.setitem(sys.modules, "triton", missing)  # pyright: ignore
        assert facts_here(torch.device("cpu"))["Triton"] == "none"
