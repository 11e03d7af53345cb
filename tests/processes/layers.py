"""Rules by layer, and sparse gradients of embeddings: scenarios as in `scenarios`."""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from tests.processes.scenarios import dense_ddp, flat, network, refused, same_on_all_ranks, scenario, train

RULES = [("0.*", gw.Quantized(8)), ("*.bias", gw.FP32()), ("numel>3000", "topk:0.1+residual:0.5")]


def rules_in(handle: gw.Handle) -> dict[str, set[gw.Compressor]]:
    plan = handle.plan
    assert plan
    return {rule: {g.compressor for g in plan.groups if g.rule == rule} for rule in (g.rule for g in plan.groups)}


EXPECTED = {
    "0.*": {gw.Quantized(8)}, "*.bias": {gw.FP32()}, "numel>3000": {gw.TopK(0.1)}, "*": {gw.EFSignSGD()},
}  # fmt: skip


@scenario(2)
def every_front_end_sends_by_the_rules() -> None:
    options = {"compressor": gw.EFSignSGD(), "rules": RULES}
    # DDP
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, **options)
    train(ddp)
    assert rules_in(handle) == EXPECTED
    assert same_on_all_ranks(flat(ddp))
    assert "numel>3000" in handle.summary()
    # a plan in a checkpoint has its rules, and state follows its parameters to a plan without any
    assert gw.Plan.from_json(handle.plan.to_json()) == handle.plan
    saved, other = handle.state_dict(), DistributedDataParallel(network())
    again = gw.attach(other, gw.EFSignSGD())
    again.load_state_dict(saved)
    again.replan(handle.plan)
    assert rules_in(again) == EXPECTED
    # optimizers
    for wrap in (gw.DistributedOptimizer, partial(gw.LocalSteps, inner_steps=2)):
        model = network()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, **options)
        train(model, 4, optimizer=optimizer)
        assert rules_in(optimizer.handle) == EXPECTED
        assert same_on_all_ranks(flat(model))
    # shards
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(network(), mesh=mesh["shard"])
    sharded = gw.attach(model, mesh=mesh, **options)
    train(model)
    assert rules_in(sharded) == EXPECTED


@scenario(2)
def rules_that_all_send_float32_are_plain_ddp() -> None:
    ddp = DistributedDataParallel(network())
    gw.attach(ddp, rules=[("0.*", gw.FP32()), ("dim<2", "fp32"), ("*", gw.FP32())])
    train(ddp)
    torch.testing.assert_close(flat(ddp), dense_ddp(), rtol=1e-5, atol=1e-6)


@scenario(2)
def ranks_whose_rules_differ_are_named_and_none_hangs() -> None:
    first = dist.get_rank() == 0
    other = [("0.*", gw.Quantized(8)), ("*", gw.FP16() if first else gw.BF16())]
    ddp = DistributedDataParallel(network())
    differs = "the ranks differ in rule 2: '*': FP16() on rank 0, '*': BF16() on rank 1; give every rank the same"
    refused(ValueError, differs, lambda: gw.attach(ddp, rules=other))
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    refused(ValueError, differs, lambda: gw.LocalSteps(inner, model, inner_steps=2, rules=other))
    # a parameter without a rule, on one rank alone
    lacking = [("0.*" if first else "*", gw.FP32())]
    why = "rank 0 cannot go on: no rule matches parameter '4.bias'"
    refused(ValueError, why, lambda: gw.attach(ddp, rules=lacking))


# Sparse gradients


class Words(nn.Module):
    """Two sparse embeddings, one of them a bag, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.bag = nn.Embedding(40, 6, sparse=True), nn.EmbeddingBag(30, 6, mode="sum", sparse=True)
        self.hidden, self.head = nn.Linear(6, 50), nn.Linear(50, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.embedding(words).mean(1) + self.bag(words % 30))))


def words(step: int, rank: int | None = None) -> Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randint(40, (4, 3), generator=torch.Generator().manual_seed(50 * step + rank))


def train_words(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(words(step)).square().mean().backward()
        optimizer.step()


def plain_words(steps: int = 6) -> Tensor:
    """After steps on all ranks' batches, in one process."""
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(dist.get_world_size()):
            (model(words(step, rank)).square().mean() / dist.get_world_size()).backward()
        optimizer.step()
    return flat(model)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3)


@scenario(2, 3)
def sparse_gradients_are_averaged_row_by_row() -> None:
    expected = plain_words()
    # under an optimizer
    model = Words()
    optimizer = gw.DistributedOptimizer(sgd(model), model, gw.FP32())
    train_words(model, optimizer, range(6))
    torch.testing.assert_close(flat(model), expected, rtol=1e-4, atol=1e-6)
    assert same_on_all_ranks(flat(model))
    gradient = model.embedding.weight.grad
    every = torch.cat([words(5, rank).flatten() for rank in range(dist.get_world_size())]).unique()
    assert gradient.is_sparse
    assert torch.equal(gradient.coalesce().indices()[0], every)
    assert "as sparse rows: bag.weight, embedding.weight" in optimizer.handle.summary()
    assert not {"embedding.weight", "bag.weight"} & {n for g in optimizer.handle.plan.groups for n in g.slots}
    # under DDP, which moves its buckets after the first step
    for options in ({}, {"find_unused_parameters": True}, {"bucket_cap_mb": 0.0005}, {"static_graph": True}):
        ddp = DistributedDataParallel(Words(), **options)
        handle = gw.attach(ddp, gw.FP32())
        train_words(ddp, sgd(ddp), range(6))
        torch.testing.assert_close(flat(ddp), expected, rtol=1e-4, atol=1e-6)
        assert same_on_all_ranks(flat(ddp))
        assert ddp.module.embedding.weight.grad.is_sparse
        handle.detach()


@scenario(2)
def sparse_gradients_follow_what_a_step_may_be() -> None:
    expected = plain_words()

    def check(model: nn.Module) -> None:
        torch.testing.assert_close(flat(model), expected, rtol=1e-4, atol=1e-6)
        assert same_on_all_ranks(flat(model))

    # plans that change under way, DDP's own reducing among them
    ddp = DistributedDataParallel(Words())
    handle, optimizer = gw.attach(ddp, gw.FP32()), sgd(ddp)
    dense = handle.plan
    for first, plan in ((0, gw.NATIVE), (2, dense), (4, gw.NATIVE)):
        handle.replan(plan)
        train_words(ddp, optimizer, range(first, first + 2))
    check(ddp)
    handle.load_state_dict(handle.state_dict())
    handle.detach()
    train_words(ddp, optimizer, range(6, 8))
    assert same_on_all_ranks(flat(ddp))
    # batches in parts, of which the last sends the sum
    for make in (DistributedDataParallel, Words):
        model = make(Words()) if make is DistributedDataParallel else make()
        wrapped = gw.DistributedOptimizer(sgd(model), model, gw.FP32()) if make is Words else sgd(model)
        within = wrapped if make is Words else model
        if make is DistributedDataParallel:
            gw.attach(model, gw.FP32())
        for step in range(6):
            wrapped.zero_grad()
            with within.no_sync():
                model(words(step)[:2]).square().mean().div(2).backward()
            model(words(step)[2:]).square().mean().div(2).backward()
            wrapped.step()
        check(model)
    # an automatic plan
    ddp = DistributedDataParallel(Words())
    automatic = gw.attach(ddp, candidates=[gw.FP32(), gw.BF16()])
    train_words(ddp, sgd(ddp), range(40))
    assert same_on_all_ranks(flat(ddp))
    assert "embedding.weight" not in {name for group in automatic.plan.groups for name in group.slots}
    # local steps send what has moved, which is dense
    model = Words()
    local = gw.LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.FP32(), inner_steps=2)
    train_words(model, local, range(4))
    assert same_on_all_ranks(flat(model))


@scenario(2)
def a_sparse_gradient_that_is_not_finite_skips_the_step_on_all_ranks() -> None:
    for wrap in (True, False):
        model: nn.Module = Words() if wrap else DistributedDataParallel(Words())
        inner, inside = sgd(model), model if wrap else model.module
        optimizer = gw.DistributedOptimizer(inner, model, gw.TopK(0.1)) if wrap else inner
        handle = optimizer.handle if wrap else gw.attach(model, gw.TopK(0.1))
        train_words(model, optimizer, range(4))
        before = handle.state_dict()
        bad = inside.embedding.weight.register_hook(lambda g: g * float("nan") if dist.get_rank() else g)
        optimizer.zero_grad()
        model(words(4)).square().mean().backward()
        bad.remove()
        assert "the sparse gradients of 'bag.weight', 'embedding.weight'" in handle.status()
        assert handle.stats().skipped == 1
        for parameter in inside.parameters():
            numbers = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
            assert numbers.isnan().any()
        after = handle.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before if "residual" in name)
        train_words(model, optimizer, range(5, 6))
        assert handle.stats().skipped == 1


@scenario(2)
def embeddings_are_left_out_frozen_and_thawed() -> None:
    model = Words()
    optimizer = gw.DistributedOptimizer(sgd(model), model, gw.FP32(), find_unused_parameters=True)
    model.embedding.requires_grad_(False)
    before = model.embedding.weight.clone()
    train_words(model, optimizer, range(2))
    assert torch.equal(model.embedding.weight, before)
    model.embedding.requires_grad_(True)
    train_words(model, optimizer, range(2, 4))
    assert not torch.equal(model.embedding.weight, before)
    # one rank alone has rows, then no rank
    for step, some in ((4, True), (5, False)):
        before = model.embedding.weight.clone()
        optimizer.zero_grad()
        hidden = model.bag(words(step) % 30)
        if some and dist.get_rank() == 0:
            hidden = hidden + model.embedding(words(step)).mean(1)
        model.head(torch.tanh(model.hidden(hidden))).square().mean().backward()
        assert (model.embedding.weight.grad is not None) == some
        optimizer.step()
        assert torch.equal(model.embedding.weight, before) != some
    assert same_on_all_ranks(flat(model))


@scenario(2)
def sparse_gradients_that_cannot_be_sent_are_one_clear_line() -> None:
    model = Words()
    unknown = gw.DistributedOptimizer(sgd(model), compressor=gw.FP32())
    refused(
        ValueError, "has a sparse gradient, and there is no nn.Embedding(sparse=True)",
        lambda: train_words(model, unknown, range(1)),
    )  # fmt: skip
    alone = nn.Embedding(8, 4, sparse=True)
    refused(
        ValueError, "all gradients are sparse, and there is nothing to compress",
        lambda: gw.attach(DistributedDataParallel(alone), gw.TopK(0.1)),
    )  # fmt: skip
    hosts = gw.ProcessGroup.by_host(2)
    refused(
        ValueError, "parameter 'bag.weight' has a sparse gradient, which is not summed inside hosts",
        lambda: gw.attach(DistributedDataParallel(Words()), gw.TopK(0.1), transport=hosts),
    )  # fmt: skip


@scenario(2)
def rows_in_few_bits_train_like_whole_ones() -> None:
    expected = plain_words(12)
    for rows in (gw.Quantized(8), "quantized:4+residual"):
        model = Words()
        optimizer = gw.DistributedOptimizer(sgd(model), model, gw.FP32(), rows=rows)
        ddp = DistributedDataParallel(Words())
        handle = gw.attach(ddp, gw.FP32(), rows=rows)
        train_words(model, optimizer, range(12))
        train_words(ddp, sgd(ddp), range(12))
        assert torch.equal(flat(model), flat(ddp))
        assert same_on_all_ranks(flat(model))
        torch.testing.assert_close(flat(model), expected, rtol=0.02, atol=0.03)
        way, _, names = next(line for line in handle.summary().splitlines() if "sparse" in line).partition(": ")
        assert way.startswith(f"as sparse rows, Quantized(bits={4 if isinstance(rows, str) else 8}")
        assert ("Residual(" in way) == isinstance(rows, str)
        assert names == "bag.weight, embedding.weight"
        # state goes along in checkpoints
        residuals = [name for name in handle.state_dict() if "residual" in name]
        assert len(residuals) == (2 if "residual" in str(rows) else 0)
        handle.load_state_dict(handle.state_dict())
        train_words(ddp, sgd(ddp), range(12, 14))
        train_words(model, optimizer, range(12, 14))
        assert torch.equal(flat(model), flat(ddp))


@scenario(2)
def mistakes_with_rows_are_one_clear_line() -> None:
    for rows in (gw.TopK(0.1), "topk:0.1", "quantized:4+residual:0.9"):
        wrong = "rows of sparse gradients travel as they are, or in few bits"
        refused(ValueError, wrong, lambda rows=rows: gw.attach(DistributedDataParallel(Words()), rows=rows))
    none = "rows= is for Embedding(sparse=True), and the model has none; leave it out"
    refused(ValueError, none, lambda: gw.attach(DistributedDataParallel(network()), gw.FP32(), rows=gw.Quantized(8)))
    bits = gw.Quantized(8 if dist.get_rank() == 0 else 4)
    differs = "the ranks differ in rows: Quantized(bits=8, block=64) NoMemory() on rank 0"
    refused(ValueError, differs, lambda: gw.attach(DistributedDataParallel(Words()), gw.FP32(), rows=bits))
