"""Which GPU a rank gets, and over which backend all of them talk. No GPU is needed: their number is pretended."""

import pytest
import torch

from gradwire.lab.launch.lab_cluster import LabCluster
from gradwire.lab.launch.rank_job import gpu_of_rank
from gradwire.lab.network.link import Link


@pytest.mark.parametrize(
    ("gpus", "ranks", "per_host", "emulated", "expected"),
    [
        (4, 4, 4, False, ("nccl", [0, 1, 2, 3])),
        (1, 4, 4, False, ("gloo", [0, 0, 0, 0])),
        (2, 4, 4, False, ("gloo", [0, 1, 0, 1])),
        # two machines of two GPUs each
        (2, 4, 2, False, ("nccl", [0, 1, 0, 1])),
        # two emulated hosts on one machine
        (2, 4, 2, True, ("gloo", [0, 1, 0, 1])),
        (4, 4, 2, True, ("nccl", [0, 1, 2, 3])),
    ],
)
def test_ranks_share_gpus_over_gloo(gpus, ranks, per_host, emulated, expected, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    found = []
    for rank in range(ranks):
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % per_host, "LOCAL_WORLD_SIZE": per_host}
        for name, value in place.items():
            monkeypatch.setenv(name, str(value))
        found.append(gpu_of_rank(emulated))
    backend, places = expected
    assert found == [(torch.device("cuda", place), backend) for place in places]


def test_what_gpus_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert LabCluster(4, Link.parse("1gbit"), "cuda")
    with pytest.raises(ValueError, match="4 ranks share 1 GPUs, so each holds a whole model; leave out --shard"):
        LabCluster(4, device="cuda", shard=2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="3 ranks were started on a machine of 1 GPUs; start one for each"):
        LabCluster(4, device="cuda")
