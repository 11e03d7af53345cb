"""Contributions with weights: scenarios as in `scenarios`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from tests.processes.layers import Words, words
from tests.processes.scenarios import flat, network, refused, same_on_all_ranks, scenario

STEPS = 4


def samples(step: int, rank: int) -> int:
    """How many samples a rank has: none on rank 1 in the second step, which trains on one that counts for nothing."""
    return (0 if step == 1 else 2) if rank == 1 else 3 + rank + step


def uneven(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    count = max(1, samples(step, rank))
    return torch.randn(count, 20, generator=generator), torch.randint(0, 5, (count,), generator=generator)


def whole(ranks: Callable[[int], list[int]], steps: int = STEPS) -> Tensor:
    """After steps of one process on the samples of these ranks together."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        parts = [[part[: samples(step, rank)] for part in uneven(step, rank)] for rank in ranks(step)]
        inputs, targets = (torch.cat(each) for each in zip(*parts, strict=True))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return flat(model)


def all_ranks(step: int) -> list[int]:
    return list(range(dist.get_world_size()))


class Trained:
    """A training of which each step's number of samples is known in its course."""

    count: float = 0.0

    def run(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
        rank = dist.get_rank()
        for step in range(steps):
            inputs, targets = uneven(step, rank)
            self.count = samples(step, rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@scenario(2, 3)
def uneven_batches_are_one_batch_for_every_front_end() -> None:
    expected = whole(all_ranks)
    own = Trained()
    options: Any = {"weight": lambda: own.count}

    def check(model: nn.Module) -> None:
        torch.testing.assert_close(flat(model), expected, rtol=1e-4, atol=1e-6)
        assert same_on_all_ranks(flat(model))

    # DDP, also where ranks may be lost
    for ddp_options, also in [({}, {}), ({"static_graph": True}, {}), ({"bucket_cap_mb": 0.01}, {"elastic": True})]:
        ddp = DistributedDataParallel(network(), **ddp_options)
        handle = gw.attach(ddp, gw.FP32(), **options, **also)
        own.run(ddp, sgd(ddp))
        check(ddp)
        handle.detach()
    # an optimizer
    model = network()
    own.run(model, gw.DistributedOptimizer(sgd(model), model, gw.FP32(), **options))
    check(model)
    # rounds of one step, whose mean the parameters become
    model = network()
    averaging = gw.Outer(1.0, momentum=0)
    own.run(model, gw.LocalSteps(sgd(model), model, gw.FP32(), inner_steps=1, outer=averaging, **options))
    check(model)
    # FSDP2, a replica on each rank
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    sharded: Any = fully_shard(network(), mesh=mesh["shard"])
    gw.attach(sharded, gw.FP32(), mesh=mesh, **options)
    own.run(sharded, sgd(sharded))
    torch.testing.assert_close(torch.cat([p.to_local().flatten() for p in sharded.parameters()]), expected)


@scenario(2)
def a_weight_is_a_number_or_a_tensor_too() -> None:
    rank = dist.get_rank()
    results = []
    weights: tuple[Any, ...] = (
        rank + 1, torch.tensor(2.0 * (rank + 1)), lambda: torch.tensor([rank + 1]), np.int64(rank + 1),
        lambda: np.sum(np.ones(rank + 1, np.float32)),
    )  # fmt: skip
    for weight in weights:
        ddp = DistributedDataParallel(network())
        gw.attach(ddp, gw.TopK(0.1), weight=weight)
        Trained().run(ddp, sgd(ddp))
        assert same_on_all_ranks(flat(ddp))
        results.append(flat(ddp))
    assert torch.equal(results[0], results[1])
    assert all(torch.equal(results[0], other) for other in results[2:])


@scenario(2)
def a_rank_that_has_joined_the_others_has_no_weight() -> None:
    own, steps = Trained(), 2 + 2 * dist.get_rank()
    for compressor in (gw.FP32(), gw.TopK(0.1)):
        ddp = DistributedDataParallel(network())
        gw.attach(ddp, compressor, weight=lambda: own.count)
        with ddp.join():
            own.run(ddp, sgd(ddp), steps)
        assert same_on_all_ranks(flat(ddp))
        if compressor == gw.FP32():
            expected = whole(lambda step: [0, 1] if step < 2 else [1])
            torch.testing.assert_close(flat(ddp), expected, rtol=1e-4, atol=1e-6)


@scenario(2)
def rows_of_embeddings_have_their_ranks_weights() -> None:
    rank, weights = dist.get_rank(), (3.0, 1.0)
    model, plain = Words(), Words()
    optimizer = gw.DistributedOptimizer(sgd(model), model, gw.FP32(), weight=weights[rank])
    alone = sgd(plain)
    for step in range(3):
        optimizer.zero_grad()
        model(words(step)).square().mean().backward()
        optimizer.step()
        alone.zero_grad()
        for other, weight in enumerate(weights):
            (plain(words(step, other)).square().mean() * weight / 4).backward()
        alone.step()
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-4, atol=1e-6)


@scenario(2)
def mistakes_with_weights_end_on_all_ranks() -> None:
    first = dist.get_rank() == 0
    # on one rank alone, or of a kind that has none
    other: Any = {"weight": 1.0} if first else {}
    differs = "the ranks differ in weight: yes on rank 0, no on rank 1; give every rank the same"
    refused(ValueError, differs, lambda: gw.attach(DistributedDataParallel(network()), gw.TopK(0.1), **other))
    vote = "has one vote; use EFSignSGD(), or leave weight out"
    refused(ValueError, vote, lambda: gw.attach(DistributedDataParallel(network()), gw.SignSGD(), weight=1))
    much: Any = "much"
    word = "weight='much'"
    refused(ValueError, word, lambda: gw.attach(DistributedDataParallel(network()), gw.TopK(0.1), weight=much))
    eager = "leave weight out"
    inner = torch.optim.SGD((model := network()).parameters(), lr=0.1)
    refused(ValueError, eager, lambda: gw.LocalSteps(inner, model, inner_steps=2, eager=True, weight=1))
    native = "a native plan leaves reducing to DDP, which weight= rules out; leave that out, or use FP32() instead"
    refused(ValueError, native, lambda: gw.attach(DistributedDataParallel(network()), gw.NATIVE, weight=1))
    # a number that is none, on one rank, in the course of training
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, gw.TopK(0.1), weight=lambda: 1.0 if first else float("nan"))
    refused(
        RuntimeError if first else ValueError, "nan is no weight of a gradient", lambda: Trained().run(ddp, sgd(ddp))
    )
