"""Replicas that are compared and mended, and what rank 0 tells all others."""

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.runtime.replicas import Difference, differences, from_first, mend
from tests.support.harness import CPU, hosts, raising, together


def test_what_rank_0_has_is_told_to_all():
    tree = {
        "state": {0: {"step": torch.tensor(3.0), "moment": torch.randn(3, 5).T, "none": None}},
        "empty": torch.empty(0, 2),
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "flag": True, "name": "é", "inf": float("inf")}],
        "kinds": [torch.tensor([True, False]), torch.tensor(1 + 2j), torch.randn(4).bfloat16()],
    }  # fmt: skip
    group = gw.Threads.group(2)
    (mine, _), (told, _) = raising(together(2, lambda r: from_first(tree if r == 0 else {}, gw.Mesh.of(group[r]), CPU)))
    for one in (mine, told):
        torch.testing.assert_close(one["state"][0]["moment"], tree["state"][0]["moment"], rtol=0, atol=0)
        torch.testing.assert_close(one["kinds"], tree["kinds"], rtol=0, atol=0)
        assert one["groups"] == tree["groups"]
        assert one["empty"].shape == (0, 2)
        assert one["state"][0]["step"].item() == 3.0
    kept = mine["state"][0]["step"]
    tree["state"][0]["step"].add_(1)
    assert kept.item() == 3.0, "rank 0 has a copy, too: its own goes on"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.Generator(), "a Generator in a state cannot be sent"),
        (torch.empty(2, device="meta"), "a sparse, quantized or meta tensor in a state cannot be sent"),
        (torch.eye(2).to_sparse(), "a sparse, quantized or meta tensor in a state cannot be sent"),
    ],
    ids=["generator", "meta", "sparse"],
)
def test_what_cannot_be_told_is_refused_on_all_ranks(value: object, says: str):
    group = gw.Threads.group(2)
    for told, why in together(2, lambda r: from_first([value] if r == 0 else [], gw.Mesh.of(group[r]), CPU)):
        assert told is None
        assert says in why


@pytest.mark.parametrize(
    ("wrong", "parts", "source", "mended"),
    [
        # replicas of two shards each: rank 5 has the second part, as 1 and 3 have
        ({5: 7.0}, [[[1, 3], [5]]], 1, {5: ["w"]}),
        ({1: 7.0}, [[[3, 5], [1]]], 3, {1: ["w"]}),
        ({2: 7.0, 3: 7.0}, [[[0, 4], [2]], [[1, 5], [3]]], 0, {2: ["w"], 3: ["w"]}),
        ({0: 7.0, 3: 7.0}, [[[2, 4], [0]], [[1, 5], [3]]], 2, {0: ["w"], 3: ["w"]}),
        ({0: 7.0, 2: 8.0}, [[[0], [2], [4]]], None, {}),
    ],
)
def test_replicas_that_differ_take_what_most_ranks_of_their_part_have(
    wrong: dict[int, float], parts: list[list[list[int]]], source: int | None, mended: dict[int, list[str]]
):
    world = hosts(3, 2, "shard")

    def looks(rank: int) -> tuple[list[Difference], list[str], Tensor]:
        right = torch.tensor([float(rank % 2), 1.0])
        held = {"w": torch.full((2,), wrong[rank]) if rank in wrong else right.clone(), "b": right.clone()}
        found = differences(held, world[rank], CPU)
        names = mend(held, found, world[rank], CPU) if source is not None else []
        return found, names, held["w"]

    for rank, (found, names, held) in enumerate(raising(together(6, looks))):
        assert [(each.name, each.equals) for each in found] == [("w", equals) for equals in parts]
        assert found[0].source == source
        assert names == mended.get(rank, [])
        if source is not None:
            assert held.tolist() == [rank % 2, 1.0]
