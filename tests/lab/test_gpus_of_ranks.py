"""Which GPU a rank gets, and over which backend all of them talk. No GPU is needed: their number is pretended."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from gradwire.frontends.init import init
from gradwire.lab.doctor.joining import device_here
from gradwire.lab.launch import rank_job
from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.rank_job import backend_of
from gradwire.lab.network.link import Link
from gradwire.transports.torch_store import TorchStore


@pytest.mark.parametrize(
    ("gpus", "ranks", "per_host", "emulated", "expected"),
    [
        (4, 4, 4, False, [0, 1, 2, 3]),
        # one that all share, or one of its own for each
        (1, 4, 4, False, [0, 0, 0, 0]),
        (2, 4, 4, False, [0, 1, 0, 1]),
        # two machines of two GPUs each
        (2, 4, 2, False, [0, 1, 0, 1]),
        # two emulated hosts on one machine
        (2, 4, 2, True, [0, 1, 0, 1]),
        (4, 4, 2, True, [0, 1, 2, 3]),
    ],
)
def test_ranks_take_gpus_in_turn(gpus, ranks, per_host, emulated, expected, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    found = []
    for rank in range(ranks):
        _set(monkeypatch, RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=rank % per_host)
        found.append(rank_job._gpu_here(emulated).index)
    assert found == expected


@pytest.mark.parametrize(("names", "expected"), [("abcd", "nccl"), ("aaaa", "gloo"), ("abca", "gloo"), ("a", "nccl")])
def test_ranks_that_share_a_gpu_talk_over_gloo(names: str, expected: str):
    store, world = HashStore(), len(names)
    with ThreadPoolExecutor(world) as ranks:
        found = [ranks.submit(backend_of, name, store, rank, world) for rank, name in enumerate(names)]
        assert [each.result(20) for each in found] == [expected] * world


@pytest.mark.parametrize(("told", "hosts"), [({"LOCAL_WORLD_SIZE": 4}, 2), ({"SLURM_STEP_NUM_NODES": 4}, 4), ({}, 8)])
def test_hosts_of_ranks_that_were_started_beforehand_are_told(told, hosts, monkeypatch: pytest.MonkeyPatch):
    _set(monkeypatch, RANK=0, WORLD_SIZE=8, **told)
    assert LabCluster(8).hosts == hosts


def test_a_rank_that_sees_one_gpu_alone_has_it_everywhere(monkeypatch: pytest.MonkeyPatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(torch.device(device).index))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda: None)
    _set(monkeypatch, RANK=6, WORLD_SIZE=8, LOCAL_RANK=2, LOCAL_WORLD_SIZE=4)
    assert LabCluster(8, device="cuda", shard=4)
    assert rank_job._gpu_here(emulated=False) == device_here("cuda") == torch.device("cuda", 0)
    init()
    assert chosen == [0]


def test_what_gpus_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert LabCluster(4, Link.parse("1gbit"), "cuda")
    with pytest.raises(ValueError, match="4 ranks share 1 GPUs, so each holds a whole model; leave out --shard"):
        LabCluster(4, device="cuda", shard=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    _set(monkeypatch, RANK=0, WORLD_SIZE=4, LOCAL_RANK=2)
    with pytest.raises(ValueError, match="3 ranks were started on a machine of 2 GPUs; start one for each"):
        LabCluster(4, device="cuda")
    # two machines of two GPUs each: no rank shares
    _set(monkeypatch, LOCAL_RANK=1)
    assert LabCluster(4, device="cuda", shard=2)


@pytest.mark.parametrize(("torchruns", "finds"), [(1, False), (2, True)])
def test_ranks_that_one_torchrun_restarts_find_nothing_of_those_before(
    torchruns: int, finds: bool, monkeypatch: pytest.MonkeyPatch
):
    """In the store that it keeps: with gloo they would connect to addresses at which nothing listens any more. Of
    several each counts its own restarts, and its ranks must meet the others'."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    for attempt in range(2):
        torchrun = {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": attempt}
        _set(monkeypatch, GROUP_WORLD_SIZE=torchruns, **torchrun, **place)
        init()
        texts = TorchStore("texts")
        assert texts.check(["left"]) == (finds and attempt == 1)
        texts.set("left", "")
        torch.distributed.destroy_process_group()


def _set(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in {"MASTER_ADDR": "gpu07", "MASTER_PORT": 29500, **variables}.items():
        monkeypatch.setenv(name, str(value))
