"""What local steps must do between real processes over gloo.

`pytest tests/processes/test_local_steps.py` runs them.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.runtime.worker import executor
from tests.processes.scenarios import (
    Complex,
    batch,
    complex_batch,
    flat,
    freeze,
    network,
    plain_step,
    refused,
    same_on_all_ranks,
    scenario,
    train,
)
from tests.processes.shards import folder, kept, shards_of


def inner(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def inner_losses(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], first: int, steps: int, data=batch
) -> list[list[float]]:
    """What each replica loses in its inner steps of a round, number `first` and on; all in one process."""
    losses: list[list[float]] = [[] for _ in models]
    for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        for step in range(first, first + steps):
            inputs, targets = data(step, rank)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses[rank].append(loss.item())
    return losses


def reference_diloco(
    replicas: int, rounds: int, inner_steps: int, lr: float, momentum: float, data=batch
) -> Iterator[list[float]]:
    """DiLoCo as its paper has it (Algorithm 1 of https://arxiv.org/abs/2311.08105), all replicas in one process; the
    losses of each replica, step by step. A replica's batch is data(step, replica)."""
    shared = network()
    models = [copy.deepcopy(shared) for _ in range(replicas)]
    optimizers = [inner(model) for model in models]
    outer = torch.optim.SGD(shared.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)
    for t in range(rounds):
        losses = inner_losses(models, optimizers, t * inner_steps, inner_steps, data)
        for own, *replicated in zip(shared.parameters(), *(m.parameters() for m in models), strict=True):
            own.grad = torch.stack([own.detach() - p.detach() for p in replicated]).mean(0)
        outer.step()
        for model in models:
            model.load_state_dict(shared.state_dict())
        yield from map(list, zip(*losses, strict=True))


@scenario(2, 4)
def diloco_is_the_papers() -> None:
    model = network()
    optimizer = gw.LocalSteps(inner(model), model, inner_steps=5, outer=gw.Outer(0.7, momentum=0.9))
    losses = train(model, 100, optimizer=optimizer)
    expected = list(reference_diloco(dist.get_world_size(), 20, 5, 0.7, 0.9))
    assert len(losses) == len(expected) == 100
    torch.testing.assert_close(losses, [each[dist.get_rank()] for each in expected], rtol=0, atol=1e-6)
    assert same_on_all_ranks(flat(model))
    # DDP would have sent in each of the 100 steps what float32 sends in each of the 20 rounds
    stats = optimizer.handle.stats()
    assert stats.steps == 100
    assert abs(stats.ratio - 5) < 0.1


def in_16_bits(rounds: int, **options: Any) -> tuple[float, float]:
    """The anchor of one weight in bfloat16, and the weight, after 20 rounds. It begins at 1, from where bfloat16 has
    steps of 1/128; rank 0 moves it by one of them in each of the first `rounds`."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1 / 128)
    optimizer = gw.LocalSteps(sgd, model, gw.FP32(), inner_steps=2, **options)
    for step in range(40):
        moves = dist.get_rank() == 0 and step % 2 == 0 and step // 2 < rounds
        model.weight.grad = torch.full_like(model.weight, -float(moves))
        optimizer.step()
    anchor = optimizer.state_dict()["local_steps"]["anchors"]["weight"].item()
    optimizer.handle.detach()
    return anchor, model.weight.item()


@scenario(2)
def what_16_bits_cannot_hold_of_an_anchor_is_no_movement() -> None:
    # small outer steps add up
    anchor, expected = in_16_bits(20, outer=gw.Outer(0.35, momentum=0.9))[0], torch.ones(1)
    outer = torch.optim.SGD([expected], lr=0.35, momentum=0.9, nesterov=True)
    for _ in range(20):
        expected.grad = torch.full((1,), -1 / 256)
        outer.step()
    assert anchor == pytest.approx(expected.item(), abs=1e-6)
    # and stay where they are while no rank moves
    for options in ({}, {"delay": 1}, {"delay": 1, "mix": 0.5}, {"eager": True}):
        anchor, parameter = in_16_bits(1, outer=gw.Outer(0.35, momentum=0), **options)
        assert anchor == pytest.approx(1 + 0.35 / 256, abs=1e-6), options
        assert parameter == 1


def reference_eager(replicas: int, rounds: int, inner_steps: int, lr: float, momentum: float) -> Iterator[list[float]]:
    """DiLoCo with eager updates (https://arxiv.org/abs/2502.12996), all replicas in one process."""
    anchors = [network() for _ in range(replicas)]
    models = [copy.deepcopy(anchor) for anchor in anchors]
    optimizers = [inner(model) for model in models]
    outers = [torch.optim.SGD(each.parameters(), lr=lr, momentum=momentum, nesterov=True) for each in anchors]
    last = [torch.zeros_like(flat(model)) for model in models]
    for t in range(rounds):
        losses = inner_losses(models, optimizers, t * inner_steps, inner_steps)
        moved = [flat(anchor) - flat(model) for anchor, model in zip(anchors, models, strict=True)]
        for rank, (anchor, outer) in enumerate(zip(anchors, outers, strict=True)):
            parts = [*last[:rank], moved[rank], *last[rank + 1 :]]  # all others' of the round before
            gradient = torch.stack(parts).mean(0).split([p.numel() for p in anchor.parameters()])
            for parameter, part in zip(anchor.parameters(), gradient, strict=True):
                parameter.grad = part.view_as(parameter)
            outer.step()
            models[rank].load_state_dict(anchor.state_dict())
        last = moved
        yield from map(list, zip(*losses, strict=True))


def eager(model: nn.Module, **others) -> gw.LocalSteps:
    return gw.LocalSteps(inner(model), model, eager=True, **{"inner_steps": 5, "outer": gw.Outer(0.4, 0.9)} | others)


@scenario(2, 4)
def eager_updates_are_the_papers() -> None:
    model = network()
    losses = train(model, 100, optimizer=eager(model))
    expected = [each[dist.get_rank()] for each in reference_eager(dist.get_world_size(), 20, 5, 0.4, 0.9)]
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-6)


@scenario(2)
def eager_updates_go_on_bit_for_bit_and_forget_what_is_not_finite() -> None:
    for cut in (12, 15, 18):
        model, other = network(), network(seed=1)
        optimizer = eager(model, compressor=gw.TopK(0.1), fragments=2)
        train(model, cut, optimizer=optimizer)
        state = whole_state(model, optimizer)
        expected = train(model, 20, first=cut, optimizer=optimizer)
        resumed = eager(other, compressor=gw.TopK(0.1), fragments=2)
        train(other, 3, optimizer=resumed)
        resumed.load_state_dict(state["optimizer"])
        other.load_state_dict(state["model"])
        assert train(other, 20, first=cut, optimizer=resumed) == expected, cut
    refused(ValueError, "save state_dict() on every rank", optimizer.stateful)
    with torch.no_grad():
        if dist.get_rank() == 1:
            model[2].weight[3, 3] = torch.nan
    train(model, 5, first=40, optimizer=optimizer)
    assert flat(model).isfinite().all()
    losses = train(model, 30, first=45, optimizer=optimizer)
    assert torch.tensor(losses).isfinite().all()
    assert flat(model).isfinite().all()


def reference_streaming(
    replicas: int, steps: int, sends: dict[int, int], every: int, delay: int, mix: float | None
) -> Iterator[list[float]]:
    """Streaming DiLoCo (https://arxiv.org/abs/2501.18512), all replicas in one process, without momentum. The model's
    part sends[s] is sent after s steps, and after every `every` from there."""
    shared = network()
    models = [copy.deepcopy(shared) for _ in range(replicas)]
    optimizers = [inner(model) for model in models]
    sent: dict[int, tuple[int, list[list[Tensor]]]] = {}

    def receive(step: int) -> None:
        if step not in sent:
            return
        part, before = sent.pop(step)
        for index, anchor in enumerate(shared[part].parameters()):
            anchor.data -= 0.4 * torch.stack([anchor.data - own[index] for own in before]).mean(0)
            for model, own in zip(models, before, strict=True):
                parameter = list(model[part].parameters())[index].data
                parameter.copy_(anchor + parameter - own[index] if mix is None else parameter.lerp(anchor, 1 - mix))

    for step in range(1, steps + 1):
        losses = inner_losses(models, optimizers, step - 1, 1)
        receive(step)
        for first, part in sends.items():
            if step >= first and (step - first) % every == 0:
                sent[step + delay] = part, [[p.detach().clone() for p in model[part].parameters()] for model in models]
        receive(step)
        yield [loss for (loss,) in losses]


@scenario(2)
def streaming_is_the_papers_however_many_fragments_travel() -> None:
    for delay, mix in ((0, None), (2, 0.5), (3, None), (5, None), (9, 0.5), (9, None)):
        model = network()
        optimizer = gw.LocalSteps(
            inner(model), model, inner_steps=9, outer=gw.Outer(0.4, momentum=0),
            fragments=iter([model[0], model[2], model[4]]), delay=delay, mix=mix,
        )  # fmt: skip
        losses = train(model, 60, optimizer=optimizer)
        sends = {3: 0, 6: 2, 9: 4}
        expected = list(reference_streaming(dist.get_world_size(), 60, sends, 9, delay, mix))
        torch.testing.assert_close(losses, [each[dist.get_rank()] for each in expected], rtol=0, atol=1e-6)
        optimizer.handle.detach()


@scenario(4)
def hosts_that_train_with_ddp_inside_are_replicas() -> None:
    hosts = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    host = hosts[dist.get_rank() // 2]
    ddp = DistributedDataParallel(network(), process_group=host)
    between = gw.ProcessGroup.by_host(2)
    optimizer = gw.LocalSteps(
        inner(ddp.module), ddp.module, inner_steps=5, outer=gw.Outer(0.7, momentum=0.9), transport=between
    )
    losses = torch.tensor(train(ddp, 30, optimizer=optimizer))
    dist.all_reduce(losses, group=host)
    expected = list(reference_diloco(2, 6, 5, 0.7, 0.9, both_ranks_batches))
    torch.testing.assert_close(
        (losses / 2).tolist(), [each[dist.get_rank() // 2] for each in expected], rtol=0, atol=1e-5
    )
    assert same_on_all_ranks(flat(ddp))
    sent = torch.tensor(optimizer.handle.stats().wire_bytes)
    dist.all_reduce(sent, group=host)
    dense = 6 * 4 * len(flat(ddp))  # of a host, as much as one replica's, whichever of its ranks sends
    assert dense <= sent <= dense + 6 * 100
    between.close()


def hosts_of_two() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def sharded(mesh: DeviceMesh, seed: int = 0) -> nn.Module:
    model = network(seed)
    fully_shard(model[2], mesh=mesh)
    return fully_shard(model, mesh=mesh)


@scenario(4, long=True)
def hosts_that_train_with_fsdp2_inside_are_replicas() -> None:
    mesh = hosts_of_two()
    host = mesh["shard"].get_group()
    expected = list(reference_diloco(2, 6, 5, 0.7, 0.9, both_ranks_batches))
    for on in (mesh["shard"], mesh):  # on both, FSDP would average over replicas by itself
        model = sharded(on)
        optimizer = gw.LocalSteps(inner(model), model, inner_steps=5, outer=gw.Outer(0.7, momentum=0.9), mesh=mesh)
        losses = torch.tensor(train(model, 30, optimizer=optimizer))
        dist.all_reduce(losses, group=host)
        torch.testing.assert_close(
            (losses / 2).tolist(), [each[mesh.get_local_rank(0)] for each in expected], rtol=0, atol=1e-5
        )
        assert same_on_all_ranks(torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]))
        dense = 6 * 4 * len(shards_of(model))  # of two replicas each sends as much as it holds
        assert dense <= optimizer.handle.stats().wire_bytes <= dense + 6 * 100
        optimizer.handle.detach()


@scenario(4, long=True)
def sharded_replicas_stream_and_resume_bit_for_bit() -> None:
    mesh = hosts_of_two()

    def local(model: nn.Module) -> gw.LocalSteps:
        return gw.LocalSteps(
            inner(model), model, gw.TopK(0.1), inner_steps=8, outer=gw.Outer(0.4, momentum=0.9), fragments=3, delay=2,
            mesh=mesh,
        )  # fmt: skip

    for cut in (13, 14, 19):
        model = sharded(mesh["shard"])
        optimizer = local(model)
        train(model, cut, optimizer=optimizer)
        state = whole_state(model, optimizer)
        expected = train(model, 12, first=cut, optimizer=optimizer)
        other = sharded(mesh["shard"], seed=1)
        resumed = local(other)
        train(other, 3, optimizer=resumed)
        resumed.load_state_dict(state["optimizer"])
        other.load_state_dict(state["model"])
        assert train(other, 12, first=cut, optimizer=resumed) == expected, cut
        assert torch.equal(shards_of(other), shards_of(model)), cut
        before = shards_of(model).clone()
        with optimizer.shared_parameters(), torch.no_grad():
            evaluated = model(batch(0, 0)[0])  # FSDP gathers what is shared, and lets go of it
            assert same_on_all_ranks(evaluated)
        assert torch.equal(shards_of(model), before)
        with torch.no_grad():
            assert not torch.equal(model(batch(0, 0)[0]), evaluated)


@scenario(4)
def what_is_not_finite_on_one_shard_is_no_part_of_its_replicas_eager_update() -> None:
    mesh = hosts_of_two()
    model = sharded(mesh["shard"])
    optimizer = eager(model, mesh=mesh)
    train(model, 4, optimizer=optimizer)
    if dist.get_rank() == 1:
        spoil = lambda *_: model[2].weight.to_local().data[3].fill_(torch.nan)  # noqa: E731
        optimizer.inner.register_step_post_hook(spoil)
    train(model, 1, first=4, optimizer=optimizer)
    moved = optimizer.state_dict()["local_steps"]["eager"][0]["moved"]
    assert any(own.any() for own in moved.values()) == (dist.get_rank() > 1)
    assert shards_of(model).isfinite().all()


def spoil(weight: DTensor, stepped: torch.optim.Optimizer, *_: object) -> None:
    for tensor in (weight, stepped.state[weight]["exp_avg"]):
        tensor.to_local().data[3, 3] = torch.nan


@scenario(4)
def what_is_not_finite_on_one_shard_counts_for_no_replica() -> None:
    mesh = hosts_of_two()
    for compressor in (gw.TopK(0.1), gw.FP32()):  # without a memory the runtime looks at no gradient
        model = sharded(mesh["shard"])
        optimizer = gw.LocalSteps(inner(model), model, compressor, inner_steps=6, mesh=mesh)
        train(model, 12, optimizer=optimizer)
        before = shards_of(model).clone()
        train(model, 5, first=12, optimizer=optimizer)
        if dist.get_rank() == 1:  # in the last inner step, so that no forward pass brings it to the other shard
            hook = optimizer.inner.register_step_post_hook(partial(spoil, model[2].weight))
        train(model, 1, first=17, optimizer=optimizer)
        if dist.get_rank() == 1:
            hook.remove()
        assert torch.equal(shards_of(model), before), compressor
        assert (model[2].weight in optimizer.inner.state) == (dist.get_rank() > 1)  # shards of a replica agree
        train(model, 12, first=18, optimizer=optimizer)
        assert shards_of(model).isfinite().all()
        assert not torch.equal(shards_of(model), before)
        assert same_on_all_ranks(torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()]))
        optimizer.handle.detach()


@scenario(4)
def a_mesh_that_does_not_fit_local_steps_is_named() -> None:
    mesh = hosts_of_two()
    whole, shards = network(), sharded(mesh["shard"])
    refused(
        ValueError,
        "mesh= is for models that fully_shard has wrapped",
        lambda: gw.LocalSteps(inner(whole), whole, mesh=mesh),
    )
    refused(ValueError, "mesh= says where its replicas are", lambda: gw.LocalSteps(inner(shards), shards))
    # shards that are not a replica's are nobody else's: no rank takes over rank 0's
    blocks = network(seed=dist.get_rank())
    fully_shard(blocks[2], mesh=mesh["shard"])
    before = [p.detach().clone() for p in blocks[2].parameters()]
    wrap, average = "call fully_shard(model) as well, and pass gw.LocalSteps", "use gw.attach(model, gw.PowerSGD"
    for model in (blocks, torch.compile(blocks, backend="eager")):
        for given in (mesh, None):
            refused(ValueError, wrap, partial(gw.LocalSteps, inner(blocks), model, inner_steps=2, mesh=given))
    for model in (blocks, shards, torch.compile(shards, backend="eager"), None):
        held = inner(shards if model is None else model)
        refused(ValueError, average, partial(gw.DistributedOptimizer, held, model, gw.FP32()))
    assert all(map(torch.equal, (p.to_local() for p in before), (p.to_local() for p in blocks[2].parameters())))
    # a compiled replica is the replica
    optimizer = gw.LocalSteps(inner(shards), torch.compile(shards, backend="eager"), inner_steps=2, mesh=mesh)
    assert "2.weight" in optimizer.state_dict()["local_steps"]["anchors"]


def fail_after(model: nn.Module) -> None:
    model(batch(0, 0)[0])
    raise ZeroDivisionError


@scenario(4)
def after_an_error_among_shared_parameters_shards_train_on_from_their_own() -> None:
    def losses(raises: bool) -> list[float]:
        mesh = hosts_of_two()
        model = sharded(mesh["shard"])
        model.set_reshard_after_forward(False)
        optimizer = gw.LocalSteps(inner(model), model, gw.FP32(), inner_steps=6, mesh=mesh)
        train(model, 3, optimizer=optimizer)
        if raises:
            with pytest.raises(ZeroDivisionError), optimizer.shared_parameters(), torch.no_grad():
                fail_after(model)
        after = train(model, 2, first=3, optimizer=optimizer)
        optimizer.handle.detach()
        return after

    assert losses(raises=True) == losses(raises=False)


def both_ranks_batches(step: int, host: int) -> tuple[Tensor, Tensor]:
    (a, x), (b, y) = batch(step, 2 * host), batch(step, 2 * host + 1)
    return torch.cat([a, b]), torch.cat([x, y])


COMPRESSORS = [
    (gw.FP32(), None, None), (gw.BF16(), None, None), (gw.ChunkTopK(), gw.Residual(decay=0.95), None),
    (gw.ChunkTopK(8, of=64), gw.Residual(decay=0.95), gw.AllGather(over_senders=True)), (gw.Quantized(4), None, None),
    (gw.QSGD(), gw.Residual(), gw.ScatterReduce()), (gw.PowerSGD(2), None, None),
    (gw.TopK(0.1), None, gw.OkTopk(rebalance=2)), (gw.EFSignSGD(), None, None),
    (gw.DCTTopK(8, chunk=16), gw.Residual(decay=0.999), gw.AllGather(over_senders=True)),
]  # fmt: skip


@scenario(2, 3)
def every_kind_of_compressor_carries_what_was_moved() -> None:
    for compressor, memory, communicator in COMPRESSORS:
        model = network()
        optimizer = gw.LocalSteps(
            inner(model),
            model,
            compressor,
            memory=memory,
            communicator=communicator,
            inner_steps=4,
            fragments=2,
            delay=1,
        )
        train(model, 17, optimizer=optimizer)
        with optimizer.shared_parameters():
            assert same_on_all_ranks(flat(model)), compressor
            assert flat(model).isfinite().all(), compressor
        assert optimizer.handle.stats().steps == 17, compressor
        optimizer.handle.detach()
        refused(RuntimeError, "detach() ended the rounds", optimizer.step)


def whole_state(model: nn.Module, optimizer: gw.LocalSteps) -> dict:
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def streaming(model: nn.Module, mix: float | None = 0.5, delay: int = 2, **others) -> gw.LocalSteps:
    return gw.LocalSteps(
        inner(model),
        model,
        gw.TopK(0.1),
        inner_steps=8,
        outer=gw.Outer(0.4, momentum=0.9),
        fragments=3,
        delay=delay,
        mix=mix,
        **others,
    )


CUTS = (
    (13, 0.5, 2), (14, None, 2), (15, None, 2), (16, 0.5, 2), (19, None, 2), (16, None, 5), (17, None, 7), (18, 0.5, 8),
)  # fmt: skip
"""After how many steps a job is cut, its `mix` and its `delay`; fragments are sent after 13, 16, 18, 21 steps."""


@scenario(2)
def a_job_cut_anywhere_goes_on_bit_for_bit() -> None:
    for cut, mix, delay in CUTS:
        model = network()
        optimizer = streaming(model, mix, delay)
        train(model, cut, optimizer=optimizer)
        state = whole_state(model, optimizer)
        expected = train(model, 20, first=cut, optimizer=optimizer)
        other = network(seed=1)
        resumed = streaming(other, mix, delay)
        train(other, 3, optimizer=resumed)
        resumed.load_state_dict(state["optimizer"])
        other.load_state_dict(state["model"])
        assert train(other, 20, first=cut, optimizer=resumed) == expected, cut
        assert torch.equal(flat(other), flat(model)), cut


# torch.distributed.checkpoint


def check_goes_on(make, path: Path, cut: int) -> None:
    """A training that is cut after so many steps, and loaded into another model that has trained otherwise."""
    model, optimizer = make(0)
    train(model, cut, optimizer=optimizer)
    dcp.save({"local_steps": optimizer.stateful()}, checkpoint_id=path)
    expected = train(model, 20, first=cut, optimizer=optimizer)
    other, resumed = make(1)
    train(other, 3, optimizer=resumed)
    dcp.load({"local_steps": resumed.stateful(path)}, checkpoint_id=path)
    assert train(other, 20, first=cut, optimizer=resumed) == expected, cut
    assert not different(whole_state(other, resumed), whole_state(model, optimizer)), cut


def different(a: Any, b: Any) -> bool:
    """Whether two states differ in a bit."""
    if isinstance(a, list) and isinstance(b, list):
        return different(dict(enumerate(a)), dict(enumerate(b)))
    if isinstance(a, dict):
        return a.keys() != b.keys() or any(different(a[key], b[key]) for key in a)
    if isinstance(a, DTensor):
        return not torch.equal(a.to_local(), b.to_local())
    return not torch.equal(a, b) if isinstance(a, Tensor) else a != b


@scenario(2, long=True)
def a_distributed_checkpoint_goes_on_bit_for_bit_from_anywhere() -> None:
    for cut, mix, delay in CUTS:

        def make(seed: int, mix=mix, delay=delay) -> tuple[nn.Module, gw.LocalSteps]:
            model = network(seed)
            return model, streaming(model, mix, delay)

        check_goes_on(make, folder(), cut)


@scenario(2)
def complex_parameters_go_on_bit_for_bit_from_a_distributed_checkpoint() -> None:
    for make_inner in (partial(torch.optim.SGD, lr=0.01, momentum=0.5), partial(torch.optim.Adam, lr=0.01)):

        def run(path: Path | None, first: int, last: int, make_inner=make_inner) -> tuple[Complex, gw.LocalSteps]:
            model = Complex(seed=first)
            optimizer = gw.LocalSteps(make_inner(model.parameters()), model, gw.TopK(0.1), inner_steps=2)
            if path:
                dcp.load({"local_steps": optimizer.stateful(path)}, checkpoint_id=path)
            for step in range(first, last):
                optimizer.zero_grad()
                model(complex_batch(step)).backward()
                for p in model.parameters():
                    p.grad = p.grad.resolve_conj()  # torch's Adam refuses a lazy conjugate
                optimizer.step()
            return model, optimizer

        path = folder()
        dcp.save({"local_steps": run(None, 0, 3)[1].stateful()}, checkpoint_id=path)
        whole, resumed = run(None, 0, 7)[0], run(path, 3, 7)[0]
        assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


class WithMore(nn.Module):
    """A model with parameters that no rounds share: an empty one, and whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.empty = nn.Parameter(torch.empty(0))
        self.numbers = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
        self.backbone, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def loss(self, step: int) -> Tensor:
        inputs = torch.randn(2, 4, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        return self.head(self.backbone(inputs)).square().sum() + self.empty.sum()


def with_more(freezes: bool, **options: Any) -> tuple[WithMore, gw.LocalSteps]:
    """With `freezes`, AdamW has trained the whole model alone, of which the backbone is then frozen."""
    model = WithMore()
    inner = torch.optim.AdamW(model.parameters(), **options)
    model.loss(0).backward()
    if freezes:
        inner.step()
        model.backbone.requires_grad_(False)
    return model, gw.LocalSteps(inner, model, gw.TopK(0.5), inner_steps=2)


@scenario(2)
def what_an_optimizer_keeps_of_parameters_that_no_rounds_share_is_in_a_distributed_checkpoint() -> None:
    for options in {"freezes": False}, {"freezes": True}, {"freezes": False, "lr": torch.tensor(1e-3)}:

        def run(first: int, last: int, path: str | None, options=options) -> tuple[WithMore, gw.LocalSteps]:
            model, optimizer = with_more(**options)
            if path:
                dcp.load({"local_steps": optimizer.stateful(path)}, checkpoint_id=path)
            for step in range(first, last):
                optimizer.zero_grad()
                model.loss(step).backward()
                optimizer.step()
            return model, optimizer

        path = folder()
        dcp.save({"local_steps": run(1, 4, None)[1].stateful()}, checkpoint_id=path)
        (model, whole), (other, resumed) = run(1, 8, None), run(4, 8, path)
        assert not different(other.state_dict(), model.state_dict()), options
        assert not different(resumed.state_dict()["state"], whole.state_dict()["state"]), options


@scenario(4, long=True)
def sharded_replicas_go_on_bit_for_bit_from_a_distributed_checkpoint() -> None:
    adam = partial(torch.optim.Adam, lr=0.3)
    two, four = hosts_of_two(), init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    cases = ((13, gw.Outer(0.4, momentum=0.9), two, two), (14, adam, four, four["shard"]), (15, adam, two, two))
    for cut, outer, mesh, on in cases:

        def make(seed: int, mesh=mesh, outer=outer, on=on) -> tuple[nn.Module, gw.LocalSteps]:
            model = sharded(on, seed)
            memory = gw.Residual(decay=0.95)
            return model, gw.LocalSteps(
                inner(model), model, gw.ChunkTopK(8, of=64), memory=memory, inner_steps=8, outer=outer,
                fragments=3, delay=2, mesh=mesh,
            )  # fmt: skip

        check_goes_on(make, folder(), cut)


@scenario(4, long=True)
def on_other_replicas_and_shards_what_memories_keep_adds_up_to_the_same() -> None:
    before, path = hosts_of_two(), folder()
    model = sharded(before["shard"])
    optimizer = gw.LocalSteps(inner(model), model, gw.TopK(0.1), inner_steps=8, fragments=3, delay=2, mesh=before)
    train(model, 14, optimizer=optimizer)
    dcp.save({"local_steps": optimizer.stateful()}, checkpoint_id=path)
    want = kept(model, optimizer.handle, before)
    with optimizer.shared_parameters():
        anchors = whole(model)
    assert any(total.any() for total in want.values())
    for shape in ((1, 4), (4, 1)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        other = sharded(mesh["shard"], seed=1)
        resumed = gw.LocalSteps(inner(other), other, gw.TopK(0.1), inner_steps=8, fragments=3, delay=2, mesh=mesh)
        dcp.load({"local_steps": resumed.stateful(path)}, checkpoint_id=path)
        got = kept(other, resumed.handle, mesh)
        assert got.keys() == want.keys()
        for name, total in want.items():
            torch.testing.assert_close(got[name], total, rtol=0, atol=1e-7)
        with resumed.shared_parameters():
            assert torch.equal(whole(other), anchors)
        assert all(loss < 2 for loss in train(other, 12, first=14, optimizer=resumed))
        with resumed.shared_parameters():
            assert same_on_all_ranks(whole(other))
        resumed.handle.detach()


def whole(model: nn.Module) -> Tensor:
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


@scenario(4)
def half_the_replicas_go_on_as_the_first_half_did() -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model, path = network(), folder()
    optimizer = streaming(model, mix=None)
    train(model, 14, optimizer=optimizer)
    dcp.save({"local_steps": optimizer.stateful()}, checkpoint_id=path)
    residual = optimizer.handle.state_dict()["2.weight//residual"]
    dist.all_reduce(residual)
    if dist.get_rank() < 2:
        other = network(seed=1)
        resumed = streaming(other, mix=None, process_group=halves[0])
        dcp.load({"local_steps": resumed.stateful(path)}, checkpoint_id=path, process_group=halves[0])
        kept = resumed.handle.state_dict()["2.weight//residual"]
        dist.all_reduce(kept, group=halves[0])
        torch.testing.assert_close(kept, residual, rtol=0, atol=1e-7)
        assert torch.equal(flat(other), flat(model))
    dist.barrier()


@scenario(2)
def a_distributed_checkpoint_that_does_not_fit_is_one_clear_line() -> None:
    model, path = network(), folder()
    optimizer = streaming(model)
    train(model, 14, optimizer=optimizer)
    dcp.save({"local_steps": optimizer.stateful(), "model": network().state_dict()}, checkpoint_id=path)
    refused(ValueError, "use stateful() of LocalSteps itself", optimizer.handle.stateful)
    loads = partial(dcp.load, checkpoint_id=path)
    refused(ValueError, "use dcp.load({...: optimizer.stateful(path)})",
            lambda: loads({"local_steps": optimizer.stateful()}))  # fmt: skip
    small = nn.Linear(20, 5)
    refused(ValueError, "parameter 'weight' is not in the state and (5, 20) here",
            lambda: gw.LocalSteps(inner(small), small).stateful(path))  # fmt: skip
    one = network()
    other = gw.LocalSteps(inner(one), one, gw.TopK(0.1), inner_steps=8)
    refused(ValueError, "the state has a fragment under way that does not exist here",
            lambda: loads({"local_steps": other.stateful(path)}))  # fmt: skip
    one = network()
    adam = partial(torch.optim.Adam, lr=0.1)
    other = gw.LocalSteps(inner(one), one, gw.TopK(0.1), inner_steps=8, outer=adam, fragments=3, delay=2, mix=0.5)
    refused(ValueError, "the state's outer optimizer is SGD, and here Adam",
            lambda: loads({"local_steps": other.stateful(path)}))  # fmt: skip
    plain = folder()
    dcp.save({"model": network().state_dict()}, checkpoint_id=plain)
    refused(ValueError, "has 0 states of local steps", lambda: optimizer.stateful(plain))
    two = folder()
    dcp.save({"a": optimizer.stateful(), "b": optimizer.stateful()}, checkpoint_id=two)
    refused(ValueError, "has 2 states of local steps, 'a', 'b'; load stateful(path, key='a')",
            lambda: optimizer.stateful(two))  # fmt: skip
    refused(ValueError, "pass the checkpoint's path too: stateful(path, key=...)", lambda: optimizer.stateful(key="b"))
    dcp.load({"b": optimizer.stateful(two, key="b")}, checkpoint_id=two)


@scenario(2)
def a_distributed_checkpoint_that_one_rank_cannot_load_none_does() -> None:
    model, path = network(), folder()
    optimizer = streaming(model)
    train(model, 14, optimizer=optimizer)
    dcp.save({"local_steps": optimizer.stateful()}, checkpoint_id=path)
    other = network(seed=1)
    groups = [{"params": [p]} for p in other.parameters()] if dist.get_rank() else other.parameters()
    resumed = gw.LocalSteps(
        torch.optim.AdamW(groups, lr=0.01), other, gw.TopK(0.1), inner_steps=8, outer=gw.Outer(0.4, momentum=0.9),
        fragments=3, delay=2, mix=0.5,
    )  # fmt: skip
    before = copy.deepcopy([other.state_dict(), resumed.state_dict()])
    refused(ValueError, "rank 1 cannot go on: the state's inner optimizer has groups of",
            lambda: dcp.load({"local_steps": resumed.stateful(path)}, checkpoint_id=path))  # fmt: skip
    assert not different([other.state_dict(), resumed.state_dict()], before)


@scenario(2, 3)
def a_round_that_is_not_finite_counts_for_nobody() -> None:
    for fragments, delay in ((1, 0), (3, 0), (3, 2), (3, 5)):
        model = network()
        optimizer = gw.LocalSteps(
            inner(model), model, gw.TopK(0.1), inner_steps=6, fragments=fragments, delay=delay
        )  # fmt: skip
        train(model, 12, optimizer=optimizer)
        before = whole_state(model, optimizer)
        with torch.no_grad():
            if dist.get_rank() == 1:
                model[2].weight[3, 3] = torch.nan
        train(model, 6, first=12, optimizer=optimizer)
        after = optimizer.state_dict()
        if fragments == 1:
            for name, tensor in before["optimizer"]["local_steps"]["memory"].items():
                assert name in ("step", "about") or torch.equal(tensor, after["local_steps"]["memory"][name]), name
            assert torch.equal(flat(model), _flat(before["model"]))
        train(model, 12, first=18, optimizer=optimizer)
        assert flat(model).isfinite().all()
        with optimizer.shared_parameters():
            assert same_on_all_ranks(flat(model))


@scenario(2)
def a_replica_may_skip_inner_steps_and_rounds_stay_where_they_are() -> None:
    model = network()
    optimizer = gw.LocalSteps(inner(model), model, inner_steps=4)
    refused(ValueError, "to leave one out, call optimizer.skip() in place of optimizer.step()", optimizer.handle.skip)
    for step in range(8):
        optimizer.zero_grad()
        with optimizer.handle.paused():
            nn.functional.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        assert all(p.grad is None for p in model.parameters())
        nn.functional.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        before = flat(model)
        skips = dist.get_rank() == 1 and step == 5
        optimizer.skip() if skips else optimizer.step()
        assert torch.equal(flat(model), before) == skips
    assert same_on_all_ranks(flat(model))


@scenario(2)
def a_step_that_a_gradscaler_leaves_out_on_one_rank_counts_for_its_round() -> None:
    def trained(scaler: torch.amp.GradScaler | None) -> Tensor:
        model = network()
        optimizer = gw.LocalSteps(inner(model), model, inner_steps=4)
        for step in range(8):
            overflows = dist.get_rank() == 1 and step == 5
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch(step)[0]), batch(step)[1])
            if scaler is None:
                loss.backward()
                optimizer.skip() if overflows else optimizer.step()
                continue
            scaler.scale(loss * (torch.inf if overflows else 1.0)).backward()
            if step % 2:  # as where gradients are clipped
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert same_on_all_ranks(flat(model))
        return flat(model)

    assert torch.equal(trained(torch.amp.GradScaler("cpu", init_scale=1024.0)), trained(None))


@scenario(2)
def what_travels_while_a_round_is_given_up_is_not_undone() -> None:
    """Fragment 0 is sent after step 20, and the round given up after 21, for fragment 1, and 23, for fragment 2."""
    model = network()
    optimizer = gw.LocalSteps(inner(model), model, inner_steps=6, outer=gw.Outer(0.4, momentum=0), fragments=3, delay=5)
    train(model, 12, optimizer=optimizer)
    with torch.no_grad():
        if dist.get_rank() == 1:
            model[2].weight[3, 3] = torch.nan
    train(model, 8, first=12, optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = 0.0  # so that replicas differ by nothing new
    train(model, 5, first=20, optimizer=optimizer)
    with optimizer.shared_parameters():
        anchors = flat(model)
    torch.testing.assert_close(flat(model), anchors, rtol=0, atol=1e-6)
    assert anchors.isfinite().all()


def _flat(state: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in state.values()])


@scenario(2)
def wrong_use_is_one_clear_line_on_every_rank() -> None:
    model = network()
    alone = dist.get_rank() == 1
    other = [*model.parameters(), nn.Parameter(torch.zeros(3))] if alone else model.parameters()
    refused(
        ValueError, "the optimizer holds a parameter that is not the model's",
        lambda: gw.LocalSteps(torch.optim.SGD(other, 0.1), model),
    )  # fmt: skip
    few = list(model.parameters())[:-1] if alone else model.parameters()
    refused(ValueError, "the ranks differ in requires_grad", lambda: gw.LocalSteps(torch.optim.SGD(few, 0.1), model))

    def wrap(**arguments) -> None:
        gw.LocalSteps(inner(model), model, **arguments)

    refused(
        ValueError, "inner_steps=3 are fewer than the 4 fragments", lambda: wrap(inner_steps=3, fragments=4)
    )  # fmt: skip
    refused(
        ValueError, "no fragment has parameter '2.weight'; fragments=[...] must cover the model",
        lambda: wrap(fragments=[model[0], model[4] if alone else model[2:]]),
    )  # fmt: skip
    refused(ValueError, "two fragments have parameter '0.weight'", lambda: wrap(fragments=[model[0], model]))
    refused(ValueError, "use 0 to 8", lambda: wrap(inner_steps=8, fragments=4, delay=9))
    refused(ValueError, "leave out delay and mix", lambda: wrap(delay=2, eager=True))
    refused(ValueError, "mix=1.0 is no share", lambda: wrap(mix=1.0))
    refused(ValueError, "inner_steps, delay, mix and eager", lambda: wrap(inner_steps=8 if alone else 9))
    refused(
        ValueError, "the ranks differ in outer's momentum: 0.9 on rank 0, 0.5 on rank 1",
        lambda: wrap(outer=gw.Outer(0.7, 0.5) if alone else gw.Outer(0.7, 0.9)),
    )  # fmt: skip
    refused(
        ValueError, "the ranks differ in outer: SGD on rank 0, Adam on rank 1",
        lambda: wrap(outer=torch.optim.Adam if alone else gw.Outer()),
    )  # fmt: skip
    each = gw.Plan(tuple(
        gw.Group((name,), gw.FP32(), gw.NoMemory(), gw.AllReduce()) for name, _ in model.named_parameters()
    ))  # fmt: skip
    refused(ValueError, "the ranks differ in fragments", lambda: wrap(compressor=each, fragments=3 if alone else 2))
    one_group = gw.Plan((
        gw.Group(tuple(n for n, _ in model.named_parameters()), gw.FP32(), gw.NoMemory(), gw.AllReduce()),
    ))  # fmt: skip
    refused(ValueError, "with parameters of another fragment", lambda: wrap(compressor=one_group, fragments=2))
    optimizer = gw.LocalSteps(inner(model), model)
    strange = {"params": [nn.Parameter(torch.zeros(3))]}
    refused(ValueError, "a parameter that the model had not", lambda: optimizer.add_param_group(strange))


def averaged(models: Sequence[nn.Module]) -> None:
    """One round's end of local SGD."""
    for parameter in (p for model in models for p in model.parameters()):
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


@scenario(2)
def what_is_thawed_joins_the_rounds() -> None:
    """Head first, then deeper, then other parts in turn."""
    phases = [{0, 2}, {0, 2}, {0}, {0}, set(), set(), {4}, {2}]
    average = {"inner_steps": 2, "outer": gw.Outer(lr=1.0, momentum=0)}
    cases = [
        (gw.FP32(), {}), (gw.TopK(0.3), {}), (gw.PowerSGD(2), {}), (gw.TopK(0.3), {"fragments": 2}),
        (gw.TopK(0.3), {"delay": 1}), (gw.TopK(0.3), {"eager": True}),
    ]  # fmt: skip
    for compressor, options in cases:
        model, plain = network(), network()
        for module in (model, plain):
            freeze(module, phases[0])
        optimizer = gw.LocalSteps(torch.optim.SGD(model.parameters(), 0.1), model, compressor, **average, **options)
        native = torch.optim.SGD(plain.parameters(), 0.1)
        sent = [0]
        for step, frozen in enumerate(phases):
            freeze(model, frozen)
            train(model, 1, first=step, optimizer=optimizer)
            sent.append(optimizer.handle.stats().wire_bytes)
            if compressor == gw.FP32():
                freeze(plain, frozen)
                train(plain, 1, first=step, optimizer=native)
                averaged([plain] if step % 2 else [])
                torch.testing.assert_close(flat(model), flat(plain))
            if not options.keys() & {"eager"}:
                assert optimizer.handle.verify() == []
        with optimizer.shared_parameters():
            assert options.keys() & {"eager", "delay"} or same_on_all_ranks(flat(model)), (compressor, options)
        assert options or sent[2] < (sent[6] - sent[4]) / 2, "what is frozen is not sent"
        optimizer.handle.detach()


@scenario(2)
def muon_for_matrices_and_adamw_for_the_rest_take_local_steps() -> None:
    def split(model: nn.Module) -> list[torch.optim.Optimizer]:
        rest = [p for p in model.parameters() if p.dim() < 2]
        return [torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=0.02), torch.optim.AdamW(rest)]

    def step_each(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], step: int) -> None:
        plain_step(model, step)
        for each in optimizers:
            each.step()
            each.zero_grad()

    plain, model = network(), network()
    native = split(plain)
    ours = [
        gw.LocalSteps(each, model, gw.FP32(), inner_steps=2, outer=gw.Outer(lr=1.0, momentum=0))
        for each in split(model)
    ]
    for step in range(6):
        step_each(plain, native, step)
        step_each(model, ours, step)
        averaged([plain] if step % 2 else [])
        torch.testing.assert_close(flat(model), flat(plain))
        assert [each.handle.verify() for each in ours] == [[], []]
    assert same_on_all_ranks(flat(model))
    refused(ValueError, "parameter '0.weight' is averaged by LocalSteps already", lambda: eager(model))


@scenario(2)
def weights_loaded_before_the_first_step_are_the_shared_ones() -> None:
    loaded, model = network(seed=1), network()
    optimizer = gw.LocalSteps(torch.optim.SGD(model.parameters(), 1e-4), model, gw.FP32(), inner_steps=2, fragments=2)
    model.load_state_dict(loaded.state_dict())
    # to evaluate, to save and to compare as well
    saved = optimizer.state_dict()["local_steps"]["anchors"]
    assert all(torch.equal(saved[name], value) for name, value in loaded.named_parameters())
    model.load_state_dict(loaded.state_dict())
    with optimizer.shared_parameters():
        assert torch.equal(flat(model), flat(loaded))
    train(model, 4, optimizer=optimizer)
    torch.testing.assert_close(flat(model), flat(loaded), rtol=0, atol=0.01)
    assert same_on_all_ranks(torch.cat([anchor.flatten() for anchor in optimizer._rounds.anchors.values()]))
    optimizer.handle.detach()
    # all replicas must load them
    optimizer = gw.LocalSteps(torch.optim.SGD(model.parameters(), 1e-4), model, gw.FP32(), inner_steps=2)
    if dist.get_rank() == 1:
        model.load_state_dict(network().state_dict())
    refused(RuntimeError, "replicas differ: parameter '0.weight'", optimizer.handle.verify)
    refused(RuntimeError, "replicas differ: parameter '0.weight'", lambda: train(model, 1, optimizer=optimizer))


@scenario(2)
def who_detaches_first_leaves_the_others_what_is_under_way() -> None:
    for options, key in (({"delay": 3}, "under way"), ({"eager": True}, "eager")):
        model = network()
        optimizer = gw.LocalSteps(inner(model), model, inner_steps=4, **options)
        train(model, 11, optimizer=optimizer)
        if dist.get_rank() == 1:
            time.sleep(0.5)
        train(model, 2, first=11, optimizer=optimizer)
        if dist.get_rank() == 1:
            (sent,) = optimizer.state_dict()["local_steps"][key]
            assert _flat(sent["means"]).isfinite().all()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executor, "CLOSE_S", 0.0)
            optimizer.handle.detach()
        dist.barrier()
