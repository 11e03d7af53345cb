"""What sharded models must do between real processes over gloo: FSDP2 inside of hosts, Gradwire between them.

`pytest tests/processes/test_shards.py` runs them.
"""

import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.collective import framed
from gradwire.frontends.shards.shard_collectives import ShardAllGather, ShardReduceScatter
from gradwire.frontends.shards.shard_compression import ShardCompression
from gradwire.torch_private.fully_shard import can_reduce_unused, fsdp_groups, parameters_of_fsdp
from tests.processes.scenarios import (
    Halving,
    check_a_spike_is_skipped,
    check_paused_passes_leave_no_trace,
    network,
    refused,
    same_on_all_ranks,
    scenario,
    train,
)

torch.set_num_threads(1)
SHAPES = ((2, 2), (4, 1))


def meshes() -> list[DeviceMesh]:
    return [init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")) for shape in SHAPES]


class Branches(nn.Module):
    """Uneven shards (7 rows), empty ones (1 row), a frozen parameter, and a branch that only even steps take."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.first, self.second = nn.Linear(8, 7), nn.Linear(7, 8)
        self.side = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(1, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor, side: bool = True) -> Tensor:
        h = self.embed(x) * self.scale
        h = h + self.second(torch.relu(self.first(h)))
        h = h + self.frozen(h)
        return self.head(h + self.side(h) if side else h)


def wrapped(mesh: DeviceMesh, tied: bool = False, whole: bool = False, **policy) -> Branches:
    torch.manual_seed(0)
    model = Branches()
    if tied:
        model.head = nn.Linear(8, 13)
        model.head.weight = model.embed.weight
    for part in () if whole else (model.first, model.side):
        fully_shard(part, mesh=mesh, **policy)
    return fully_shard(model, mesh=mesh, **policy)


def inputs(step: int) -> Tensor:
    return torch.randint(13, (4, 5), generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def loss_of(model: nn.Module, step: int, side: bool = True) -> Tensor:
    return model(inputs(step), side).square().mean()


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.to_local().clone() for p in model.parameters()]


def equal(these: list[Tensor | None], those: list[Tensor | None]) -> bool:
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(these, those, strict=True)
    )


def as_fsdp_groups(model: nn.Module, dense: gw.Compressor) -> gw.Plan:
    """Together what native HSDP sums up together: else four numbers are added in another order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [[names[p] for p in parameters_of_fsdp(group) if p.requires_grad] for group in fsdp_groups(model)]
    return gw.Plan(tuple(gw.Group(tuple(group), dense, gw.NoMemory(), gw.AllReduce()) for group in reversed(groups)))


@scenario(4)
def fp32_between_replicas_is_native_hsdp() -> None:
    half = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)}
    mixed = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    offloaded = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    cases = [{}, {}, {"tied": True}, {"whole": True}, mixed, half, offloaded, {"reshard_after_forward": False}]
    for case, mesh in zip(cases, len(cases) // 2 * meshes(), strict=True):
        dense = gw.BF16() if case is half else gw.FP32()
        native = wrapped(mesh, **case)
        on_shards, on_both = wrapped(mesh["shard"], **case), wrapped(mesh, **case)
        plan = as_fsdp_groups(native, dense)
        handles = [gw.attach(on_shards, plan, mesh=mesh), gw.attach(on_both, plan)]
        models = (native, on_shards, on_both)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        for step in range(3):
            for model in models:
                loss_of(model, step).backward()
            want = gradients(native)
            assert equal(gradients(on_shards), want), (mesh, case, step)
            assert equal(gradients(on_both), want), (mesh, case, step)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for handle in handles:
            handle.detach()


@scenario(4, long=True)
def several_forward_passes_for_one_backward_are_native_hsdps() -> None:
    for mesh in meshes():
        native, ours = wrapped(mesh), wrapped(mesh["shard"])
        gw.attach(ours, as_fsdp_groups(native, gw.FP32()), mesh=mesh)
        for step in range(0, 6, 2):
            for model in (native, ours):
                model.zero_grad()
                (loss_of(model, step) + loss_of(model, step + 1)).backward()
            assert equal(gradients(ours), gradients(native))


@scenario(4)
def what_is_accumulated_is_native_hsdps() -> None:
    for mesh in meshes():
        native, ours, told = wrapped(mesh), wrapped(mesh["shard"]), wrapped(mesh)
        plan = as_fsdp_groups(native, gw.FP32())
        handle = gw.attach(ours, plan, mesh=mesh)
        gw.attach(told, plan)
        for step in range(0, 9, 3):
            for part in range(3):
                native.set_requires_all_reduce(part == 2)
                told.set_requires_all_reduce(part == 2)
                loss_of(native, step + part).backward()
                loss_of(told, step + part).backward()
                with nullcontext() if part == 2 else handle.accumulate():
                    loss_of(ours, step + part).backward()
            assert equal(gradients(ours), gradients(native))
            assert equal(gradients(told), gradients(native))
            for model in (native, ours, told):
                model.zero_grad()


@scenario(4, long=True)
def what_is_accumulated_counts_though_the_last_micro_batch_does_not_use_it() -> None:
    for mesh in meshes():
        native, ours, told = wrapped(mesh), wrapped(mesh["shard"]), wrapped(mesh["shard"])
        plan = as_fsdp_groups(native, gw.FP32())
        handle = gw.attach(ours, plan, mesh=mesh)
        gw.attach(told, plan, mesh=mesh)
        for part in range(3):
            side = part < 2
            for model in (native, told):
                model.set_requires_gradient_sync(part == 2)
                loss_of(model, part, side).backward()
            with nullcontext() if part == 2 else handle.accumulate():
                loss_of(ours, part, side).backward()
        assert equal(gradients(told), gradients(native))
        for mine, want in zip(gradients(ours), gradients(native), strict=True):  # adds up after shards are cut
            torch.testing.assert_close(mine, want)


@scenario(4)
def unused_parameters_are_as_in_native_hsdp() -> None:
    for mesh in meshes():
        native, ours = wrapped(mesh), wrapped(mesh["shard"])
        gw.attach(ours, as_fsdp_groups(native, gw.FP32()), mesh=mesh, find_unused_parameters=True)
        for step in range(4):
            for model in (native, ours):
                loss_of(model, step, side=step % 2 == 0).backward()
            want = gradients(native)
            assert sum(each is None for each in want) == (2 if step % 2 == 0 else 4)
            assert equal(gradients(ours), want)
            native.zero_grad()
            ours.zero_grad()


@scenario(4)
def a_parameter_that_one_replica_uses_gets_the_mean_on_all() -> None:
    for mesh in meshes():
        ours = wrapped(mesh["shard"], whole=True)
        gw.attach(ours, gw.TopK(0.3), mesh=mesh, find_unused_parameters=True)
        first = mesh.get_local_rank("replicate") == 0
        loss_of(ours, 0, side=first).backward()
        assert ours.side.weight.grad is not None
        assert same_between_replicas(torch.cat([g.flatten() for g in gradients(ours) if g is not None]), mesh)


@scenario(4)
def an_unused_parameter_is_an_error_that_says_what_to_pass() -> None:
    mesh = meshes()[0]
    ours = wrapped(mesh["shard"])
    gw.attach(ours, gw.FP32(), mesh=mesh)
    refused(RuntimeError, "pass find_unused_parameters=True", loss_of(ours, 0, side=False).backward)


def divided_by(model: Branches, factor: float | None) -> Branches:
    """The model, whose gradients FSDP then adds up and divides by this, with a factor."""
    for module in (model.first, model.side, model) if factor else ():
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(factor)
    return model


@scenario(4)
def a_factor_of_the_users_is_followed() -> None:
    for mesh in meshes():
        native, ours = (divided_by(wrapped(on), 8.0) for on in (mesh, mesh["shard"]))
        handle = gw.attach(ours, as_fsdp_groups(native, gw.FP32()), mesh=mesh)
        for model in (native, ours):
            loss_of(model, 0).backward()
        assert equal(gradients(ours), gradients(native))
        handle.detach()
        assert not any(group._all_reduce_hook for group in fsdp_groups(ours))


def with_a_list(mesh: DeviceMesh) -> nn.Sequential:
    """Three layers, of which fully_shard has wrapped two together, as torchtitan does with the last ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard([model[1], model[2]], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def flat_gradients(model: nn.Module) -> Tensor:
    model.zero_grad()
    torch.manual_seed(dist.get_rank())
    model(torch.randn(3, 4)).square().mean().backward()
    return torch.cat([p.grad.to_local().flatten() for p in model.parameters()])


@scenario(2)
def modules_that_were_wrapped_as_a_list_are_one_group() -> None:
    model = with_a_list(init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
    for module in (model, model[1]):
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    native = flat_gradients(model)
    handle = gw.attach(model, gw.FP32())
    torch.testing.assert_close(flat_gradients(model), native)
    handle.detach()
    assert not any(group._all_reduce_hook for group in fsdp_groups(model))
    torch.testing.assert_close(flat_gradients(model), native)
    # and where shards are compressed
    if not can_reduce_unused():
        return
    shards = with_a_list(line())
    compression = gw.compress_shards(shards, gw.TopK(0.5), memory=gw.Residual())
    flat_gradients(shards)
    before = compression.traffic()
    compression.detach()
    assert not any(group.reduce_scatter_unused_params for group in fsdp_groups(shards))
    flat_gradients(shards)
    assert compression.traffic() == before


@scenario(4)
def one_hooked_group_has_fsdp_hook_all_so_that_they_end_on_one_stream() -> None:
    mesh, mine = meshes()[0], []
    for factor, hook, hooked in ((None, None, False), (8.0, None, True), (None, mine.append, True)):
        native, ours = (wrapped(on) for on in (mesh, mesh["shard"]))
        for model in (native, ours):
            if factor:
                model.side.set_force_sum_reduction_for_comms(True)
                model.side.set_gradient_divide_factor(factor)
        if hook:
            ours.side.set_all_reduce_hook(hook)
        handle = gw.attach(ours, as_fsdp_groups(native, gw.FP32()), mesh=mesh)
        groups = fsdp_groups(ours)
        assert [group._all_reduce_hook is not None for group in groups] == len(groups) * [hooked]
        for model in (native, ours):
            loss_of(model, 0).backward()
        assert equal(gradients(ours), gradients(native))
        handle.detach()
        assert [group._all_reduce_hook for group in groups if group._all_reduce_hook] == ([hook] if hook else [])
    assert len(mine) == 1


@scenario(4)
def each_of_several_backward_passes_of_a_step_counts_once() -> None:
    for mesh, factor in product(meshes(), (None, 8.0)):
        native, ours, sparse = (divided_by(wrapped(on), factor) for on in (mesh, mesh["shard"], mesh))
        gw.attach(ours, as_fsdp_groups(native, gw.FP32()), mesh=mesh)
        handle = gw.attach(sparse, gw.TopK(0.1))
        for step in range(0, 6, 3):
            before = kept(sparse, handle, mesh)
            for part in range(3):
                for model in (native, ours, sparse):
                    loss_of(model, step + part).backward()
                for mine, want in zip(gradients(ours), gradients(native), strict=True):
                    torch.testing.assert_close(mine, want)
            # error feedback: all that is not in the mean is in the memories
            later = kept(sparse, handle, mesh)
            for (name, mine), want in zip(sparse.named_parameters(), native.parameters(), strict=True):
                if name in later:
                    sent = mine.grad.full_tensor() + later[name] - before.get(name, 0)
                    torch.testing.assert_close(sent.float(), want.grad.full_tensor(), rtol=1e-4, atol=1e-6)
            for model in (native, ours, sparse):
                model.zero_grad()


@scenario(4)
def a_factor_that_comes_after_attach_is_refused() -> None:
    mesh = meshes()[0]
    ours = wrapped(mesh["shard"])
    gw.attach(ours, gw.FP32(), mesh=mesh)
    refused(ValueError, "call set_gradient_divide_factor() before attach()", loss_of(divided_by(ours, 8.0), 0).backward)


@scenario(2)
def fsdp_reshards_a_native_hsdp_model_as_before() -> None:
    names = ("replicate", "shard", "tp")
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=names[:2])
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4))
    columns: dict[str, Any] = {"mesh": mesh, "shard_placement_fn": lambda p: Shard(p.dim() - 1)}
    fully_shard(model[0], **columns)
    fully_shard(model, **columns)
    before, groups = model[0].weight, fsdp_groups(model)
    handle = gw.attach(model, gw.FP32())
    with torch.no_grad():
        model(torch.ones(2, 6))
    assert model[0].weight is before
    model(torch.ones(2, 6)).sum().backward()
    handle.detach()
    # the root's was switched off by FSDP in between; it stays so
    assert [group._reshard_after_forward for group in groups] == [False, True]
    assert not any(group._use_post_forward_mesh for group in groups)
    # beside tensor parallelism, and in local steps
    cube = init_device_mesh("cpu", (2, 1, 1), mesh_dim_names=names)
    both = in_columns(cube, cube["replicate", "shard"])
    local = gw.LocalSteps(torch.optim.SGD(both.parameters(), lr=0.1), both, gw.FP32(), inner_steps=2)
    column_steps(both, dist.get_rank())
    local.handle.detach()
    assert not any(group._use_post_forward_mesh for group in fsdp_groups(both))


@scenario(2)
def an_attached_model_gathers_its_parameters_as_often_as_before() -> None:
    """Also in steps of several forward passes, between which FSDP keeps them gathered."""
    mesh, counts = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard")), []
    gather = _fsdp_param_group.foreach_all_gather
    for attached in (False, True):
        model = wrapped(mesh["shard"], reshard_after_forward=False)
        if attached:
            gw.attach(model, gw.FP32(), mesh=mesh)
        with patch.object(_fsdp_param_group, "foreach_all_gather", side_effect=gather) as counted:
            for _ in range(2):
                (loss_of(model, 0) + loss_of(model, 1)).backward()
                for last in (False, False, True):
                    model.set_requires_gradient_sync(last)
                    model.set_reshard_after_backward(last)
                    loss_of(model, 2).backward()
        counts.append(counted.call_count)
    assert counts[0] == counts[1]


@scenario(4)
def torchs_replicate_is_compressed_as_well() -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("replicate",))
    models = []
    for _ in range(3):
        torch.manual_seed(0)
        models.append(replicate(Branches(), mesh=mesh))
    native, ours, compressed = models
    gw.attach(ours, as_fsdp_groups(native, gw.FP32()))
    gw.attach(compressed, gw.TopK(0.1))
    for model in models:
        loss_of(model, 0).backward()
    assert equal(gradients(ours), gradients(native))
    assert not equal(gradients(compressed), gradients(native))
    assert same_between_replicas(torch.cat([g.flatten() for g in gradients(compressed) if g is not None]), mesh)


def same_between_replicas(tensor: Tensor, mesh: DeviceMesh) -> bool:
    copies = [torch.empty_like(tensor) for _ in range(mesh.size(0))]
    dist.all_gather(copies, tensor, group=mesh.get_group(0))
    return all(torch.equal(copies[0], other) for other in copies)


def shards_of(model: nn.Module) -> Tensor:
    return torch.cat([p.to_local().detach().flatten() for p in model.parameters()])


COMPRESSORS = [
    gw.TopK(0.05), gw.PowerSGD(1), gw.Quantized(bits=4), gw.QSGD(block=64), gw.DGC(0.05), gw.ACPSGD(1),
    gw.EFSignSGD(block=64), gw.RandomK(0.1), gw.ChunkTopK(8, of=64), gw.DCTTopK(8, chunk=8),
]  # fmt: skip


@scenario(4, long=True)
def replicas_stay_the_same_with_shards() -> None:
    for compressor, mesh in zip(COMPRESSORS, len(COMPRESSORS) // 2 * meshes(), strict=True):
        model = wrapped(mesh["shard"], whole=True)
        handle = gw.attach(model, compressor, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        losses = []
        for step in range(16):
            optimizer.zero_grad()
            loss = loss_of(model, step % 4)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert same_between_replicas(shards_of(model), mesh), compressor
        assert losses[-1] < losses[0] / 2, compressor
        handle.detach()


@scenario(4)
def a_nan_on_one_shard_leaves_every_memory_as_it_was() -> None:
    for mesh in meshes():
        model = wrapped(mesh["shard"])
        handle = gw.attach(model, gw.TopK(0.1), mesh=mesh)
        for step in range(3):
            loss_of(model, step).backward()
            model.zero_grad()
        before = handle.state_dict()
        assert any(key.endswith("residual") and value.any() for key, value in before.items())
        spoiler = model.second.weight.register_post_accumulate_grad_hook(spoil) if dist.get_rank() == 1 else None
        loss_of(model, 3).backward()
        after = handle.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before.keys() - {"step", "about"})
        if spoiler:
            spoiler.remove()
        model.zero_grad()
        loss_of(model, 4).backward()
        later = handle.state_dict()
        assert any(not torch.equal(after[key], later[key]) for key in after if key.endswith("residual"))


@scenario(4)
def skipped_steps_and_paused_passes_leave_no_trace() -> None:
    for mesh in meshes():

        def make(mesh: DeviceMesh = mesh) -> tuple[nn.Module, gw.Handle]:
            model = wrapped(mesh["shard"])
            return model, gw.attach(model, gw.TopK(0.1), mesh=mesh)

        check_a_spike_is_skipped(make, loss_of)
        check_paused_passes_leave_no_trace(make, loss_of)


@scenario(2)
def passes_that_a_framework_only_accumulates_are_not_skipped_by_taking_back_the_step_before() -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = with_a_list(mesh["shard"])
    handle = gw.attach(model, gw.TopK(0.3), mesh=mesh)
    flat_gradients(model)
    model.set_requires_gradient_sync(False)
    model(torch.ones(3, 4)).sum().backward()
    refused(ValueError, "only accumulated and sent nothing", handle.skip)
    # FSDP looks at that in backward
    model.set_requires_gradient_sync(True)
    flat_gradients(model)
    loss = model(torch.ones(3, 4)).sum()
    model.set_requires_gradient_sync(False)
    loss.backward()
    model.set_requires_gradient_sync(True)
    refused(ValueError, "only accumulated and sent nothing", handle.skip)
    # torch runs no hooks of a module for its forward() itself
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.3))
    train(ddp, 1)
    with ddp.no_sync():
        ddp.forward(torch.ones(3, 20)).sum().backward()
    refused(ValueError, "only accumulated and sent nothing", handle.skip)


@scenario(2)
def whole_gradients_that_fsdp_holds_come_back_after_a_paused_pass() -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))

    def step(model: nn.Module, passes: AbstractContextManager[None] | None, sync: bool) -> Tensor:
        model.zero_grad()
        model.set_requires_gradient_sync(False)
        loss_of(model, 0).backward()
        model.set_requires_gradient_sync(sync)
        with passes or nullcontext():
            if passes:
                loss_of(model, 1).backward()
        model.set_requires_gradient_sync(True)
        loss_of(model, 2).backward()
        return torch.cat([g.flatten() for g in gradients(model) if g is not None])

    for policy, sync in product(
        ({}, {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}), (True, False)
    ):
        models = [wrapped(mesh["shard"], **policy) for _ in range(3)]
        attached = gw.attach(models[1], gw.FP32(), mesh=mesh)
        local = gw.LocalSteps(torch.optim.SGD(models[2].parameters(), lr=0.1), models[2], mesh=mesh, inner_steps=9)
        want = step(models[0], None, sync)
        for model, handle in zip(models[1:], (attached, local.handle), strict=True):
            assert torch.equal(step(model, handle.paused(), sync), want)
            # also where FSDP has held none before
            assert torch.equal(step(model, None, sync), want)
            model.set_requires_gradient_sync(sync)
            with handle.paused():
                loss_of(model, 1).backward()
            assert torch.equal(step(model, None, sync), want)
            handle.detach()


def spoil(parameter: Tensor) -> None:
    """Runs behind Gradwire's hook, and before the gradient is taken: its group is not complete yet."""
    parameter.grad.to_local().fill_(torch.nan)


# Checkpoints


def folder() -> Path:
    """One for all ranks."""
    told = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(told)
    return Path(told[0])


def kept(model: nn.Module, handle: gw.Handle, mesh: DeviceMesh) -> dict[str, Tensor]:
    """The sum over replicas of what memories keep, whole, by parameter."""
    state, sums = handle.state_dict(), {}
    for name, parameter in model.named_parameters():
        key = f"{name}//residual"
        if key in state:
            total = state[key].double()
            dist.all_reduce(total, group=mesh.get_group(0))
            local, own = parameter.to_local(), torch.view_as_complex(total) if parameter.is_complex() else total
            mine = own if local.numel() else local.to(own.dtype)
            sums[name] = DTensor.from_local(
                mine, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
            ).full_tensor()
    return sums


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for step in numbers:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def parts(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    own, optimizers = get_state_dict(model, optimizer)
    return {"model": own, "optimizer": optimizers}


@scenario(4, long=True)
def a_training_goes_on_bit_for_bit_from_a_distributed_checkpoint() -> None:
    compressors = (gw.ReusedThreshold(0.1, warmup=2), gw.PowerSGD(1), gw.DGC(0.1), gw.Quantized(bits=4))
    for compressor, mesh in zip(compressors, 2 * meshes(), strict=True):
        model, path = wrapped(mesh["shard"]), folder()
        handle = gw.attach(model, compressor, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        steps(model, optimizer, range(6))
        dcp.save(parts(model, optimizer) | {"gradwire": handle.stateful()}, checkpoint_id=path)
        saved = handle.state_dict()
        steps(model, optimizer, range(6, 12))

        other = wrapped(mesh["shard"])
        resumed = gw.attach(other, compressor, mesh=mesh)
        second = torch.optim.AdamW(other.parameters(), lr=0.01)
        loaded = parts(other, second) | {"gradwire": resumed.stateful(path)}
        dcp.load(loaded, checkpoint_id=path)
        read = resumed.state_dict()
        assert read.keys() == saved.keys()
        assert all(torch.equal(read[key], saved[key]) for key in read), compressor
        set_state_dict(other, second, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        steps(other, second, range(6, 12))
        assert torch.equal(shards_of(other), shards_of(model)), compressor
        mine, others = resumed.state_dict(), handle.state_dict()
        assert mine.keys() == others.keys()
        assert all(torch.equal(mine[key], others[key]) for key in mine), compressor


@scenario(4, long=True)
def what_memories_keep_adds_up_to_the_same_on_another_mesh() -> None:
    for before, compressor in zip(meshes(), (gw.ReusedThreshold(0.1, warmup=2), gw.PowerSGD(1)), strict=True):
        model, path = wrapped(before["shard"]), folder()
        handle = gw.attach(model, compressor, mesh=before)
        steps(model, torch.optim.SGD(model.parameters(), lr=0.1), range(5))
        dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
        want = kept(model, handle, before)
        assert any(total.any() for total in want.values())
        for shape in ((2, 2), (1, 4), (4, 1)):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
            other = wrapped(mesh["shard"])
            resumed = gw.attach(other, compressor, mesh=mesh)
            dcp.load({"gradwire": resumed.stateful(path)}, checkpoint_id=path)
            got = kept(other, resumed, mesh)
            assert got.keys() == want.keys()
            for name, total in want.items():
                torch.testing.assert_close(got[name], total, rtol=0, atol=1e-7)
            steps(other, torch.optim.SGD(other.parameters(), lr=0.1), range(2))
            assert same_between_replicas(shards_of(other), mesh)
            resumed.detach()
        handle.detach()


@scenario(4)
def accordion_goes_on_from_what_each_shard_has_seen() -> None:
    scheduler = Halving()

    def attached(shape: tuple[int, int]) -> tuple[Branches, gw.Handle]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        model = wrapped(mesh["shard"])
        controller = gw.Accordion(0.5, 0.1, scheduler, interval=3, threshold=0.9)
        return model, gw.attach(model, gw.TopK(0.5), mesh=mesh, controller=controller)

    model, handle = attached((2, 2))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.0), range(8))
    path, saved = folder(), handle.state_dict()
    dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
    _, resumed = attached((2, 2))
    resumed.load_state_dict(saved)
    _, other = attached((2, 2))
    dcp.load({"gradwire": other.stateful(path)}, checkpoint_id=path)
    for loaded in (resumed.state_dict(), other.state_dict()):
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[key], tensor) for key, tensor in saved.items())
    # other shards: what was seen of these begins anew, and the plan stays
    changed, fewer = attached((4, 1))
    dcp.load({"gradwire": fewer.stateful(path)}, checkpoint_id=path)
    assert fewer.plan == handle.plan
    steps(changed, torch.optim.SGD(changed.parameters(), lr=0.0), range(8, 12))


@scenario(4, long=True)
def a_single_replica_keeps_a_controllers_state_for_later_ones() -> None:
    def attached(shape: tuple[int, int], steps: int = 20) -> tuple[Branches, gw.Handle]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        model = wrapped(mesh["shard"])
        return model, gw.attach(model, gw.TopK(0.1), mesh=mesh, controller=gw.WarmUp(0.5, steps=steps))

    def handed_on(handle: gw.Handle, to: gw.Handle) -> dict[str, Tensor]:
        path = folder()
        dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
        dcp.load({"gradwire": to.stateful(path)}, checkpoint_id=path)
        return {key: tensor for key, tensor in to.state_dict().items() if key.startswith("//")}

    model, handle = attached((2, 2))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), range(5))
    want = {key: tensor for key, tensor in handle.state_dict().items() if key.startswith("//")}
    (alone, single), (_, grown) = attached((1, 4)), attached((2, 2))
    assert "one replica: nothing to compress" in single.status()
    assert "replica" not in grown.status()
    assert handed_on(handle, single).keys() == want.keys()
    # what cannot be loaded changes nothing of it
    refused(ValueError, "pass what handle.state_dict() returned", lambda: single.load_state_dict({}))
    steps(alone, torch.optim.SGD(alone.parameters(), lr=0.1), range(5, 6))
    got = handed_on(single, grown)
    assert got.keys() == want.keys()
    assert all(torch.equal(got[key], tensor) for key, tensor in want.items())
    assert grown.plan == handle.plan


@scenario(4)
def unsharded_models_have_distributed_checkpoints_as_well() -> None:
    ddp, path = DistributedDataParallel(network()), folder()
    handle = gw.attach(ddp, gw.DGC(0.1))
    train(ddp, 5)
    dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
    model = network()
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.DGC(0.1))
    dcp.load({"gradwire": optimizer.handle.stateful(path)}, checkpoint_id=path)
    mine, saved = optimizer.handle.state_dict(), handle.state_dict()
    kinds = [key for key in saved if key.endswith(("residual", "velocity"))]
    assert kinds
    assert all(torch.equal(mine[key], saved[key]) for key in kinds)
    refused(ValueError, "has 0 Gradwire states", lambda: handle.stateful(without_state()))


@scenario(2)
def of_two_states_in_a_distributed_checkpoint_the_key_says_which() -> None:
    path, models = folder(), {key: DistributedDataParallel(network()) for key in "gdo"}
    made = {key: gw.attach(models[key], gw.TopK(ratio)) for key, ratio in {"g": 0.1, "d": 0.3}.items()}
    for key in made:
        train(models[key], 2)
    dcp.save({key: handle.stateful() for key, handle in made.items()}, checkpoint_id=path)
    saved = {key: handle.state_dict() for key, handle in made.items()}
    other = gw.attach(models["o"], gw.TopK(0.1))
    for key in (None, "x"):
        refused(ValueError, "has 2 Gradwire states, 'd', 'g'; load stateful(path, key='d')",
                partial(other.stateful, path, key))  # fmt: skip
    for key, state in saved.items():
        dcp.load({key: other.stateful(path, key)}, checkpoint_id=path)
        mine = other.state_dict()
        assert all(torch.equal(mine[name], state[name]) for name in state if name.endswith("residual"))


@scenario(2)
def ddp_beside_tensor_parallelism_keeps_its_parameters_names() -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "tp"))
    ddp = beside_tensor_parallelism(mesh, ["second.bias"])
    parameters = [*ddp.parameters()]
    handle = gw.attach(ddp, gw.TopK(0.3))
    names = [*handle.stateful().state_dict()]
    column_steps(ddp, dist.get_rank(), count=1)
    assert not [*ddp.parameters()]  # for torch has put tensors in their place
    handle.verify()
    assert [*handle.stateful().state_dict()] == names
    before = [p.grad.clone() for p in parameters if p.grad is not None]
    with handle.paused():
        assert all(p.grad is None for p in parameters)
        ddp(torch.ones(4, 6)).square().mean().backward()
        assert all(p.grad is not None for p in parameters)
    assert all(map(torch.equal, before, (p.grad for p in parameters)))
    handle.replan(gw.NATIVE)
    column_steps(ddp, dist.get_rank(), count=2)
    reduced = [p.grad.reshape(-1) for p in parameters[:-1] if p.grad is not None]
    assert len(reduced) == 3
    assert same_on_all_ranks(torch.cat(reduced))
    assert handle.status().endswith("DDP does not reduce 'second.bias'")
    handle.detach()
    refused(ValueError, "attach() before the first forward pass", lambda: gw.attach(ddp, gw.TopK(0.3)))


def beside_tensor_parallelism(mesh: DeviceMesh, ignored: Sequence[str] = ()) -> DistributedDataParallel:
    torch.manual_seed(0)
    model = parallelize_module(Columns(), mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
    return DistributedDataParallel(model, device_mesh=mesh["replicate"])


@scenario(4)
def a_checkpoint_has_the_memories_of_all_shards_of_tensor_parallelism_beside_ddp() -> None:
    mesh, path = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "tp")), folder()
    ddp, other = (beside_tensor_parallelism(mesh) for _ in range(2))
    handle, resumed = gw.attach(ddp, gw.TopK(0.3)), gw.attach(other, gw.TopK(0.3))
    column_steps(ddp, mesh.get_local_rank(0))
    dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
    dcp.load({"gradwire": resumed.stateful(path)}, checkpoint_id=path)
    mine, want = resumed.state_dict(), handle.state_dict()
    residuals = [key for key in want if key.endswith("residual")]
    assert mine.keys() == want.keys()
    assert any(want[key].any() for key in residuals)
    assert all(torch.equal(mine[key], want[key]) for key in residuals)
    # a rank of tensor parallelism that has taken another one's file
    gw.save(want, path / f"{dist.get_rank()}.pt")
    dist.barrier()
    others = torch.load(path / f"{dist.get_rank() ^ 1}.pt", weights_only=True)
    refused(ValueError, f"(shard {1 - mesh.get_local_rank(1)} of 2), and here", lambda: resumed.load_state_dict(others))
    own = f"this job has shard {mesh.get_local_rank(1)} of 2, and other ranks have"
    refused(ValueError, own, lambda: handle.state_dict(all_ranks=True))


class Columns(nn.Module):
    """Two layers, which tensor parallelism cuts along the first dimension and along the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def in_columns(mesh: DeviceMesh, on: DeviceMesh | None = None) -> Columns:
    """Cut along "tp", if the mesh has that, and along "shard", or wrapped `on` another mesh."""
    torch.manual_seed(0)
    model = Columns()
    if "tp" in (mesh.mesh_dim_names or ()):
        parallelize_module(model, mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
    for layer in (model.first, model.second) if on else ():
        fully_shard(layer, mesh=on)
    return fully_shard(model, mesh=on or mesh["shard"])


def column_steps(model: nn.Module, replica: int, count: int = 3) -> None:
    generator = torch.Generator().manual_seed(replica)
    for _ in range(count):
        model.zero_grad()
        model(torch.randn(4, 6, generator=generator)).square().mean().backward()


class PartlyCut(nn.Module):
    """Beside two layers that tensor parallelism cuts, an embedding, a norm and a head, which it leaves whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(64, 32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.second(torch.relu(self.first(self.embed(x))))))


CUT = ("first.weight", "first.bias", "second.weight")


def partly_cut(mesh: DeviceMesh) -> PartlyCut:
    torch.manual_seed(0)
    return parallelize_module(PartlyCut(), mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})


def check_copies_stay_equal(model: nn.Module, parameters: dict[str, nn.Parameter], optimizer, mesh: DeviceMesh) -> None:
    generator = torch.Generator().manual_seed(mesh.get_local_rank(0))
    for _ in range(6):
        x = torch.randint(64, (16, 8), generator=generator)
        nn.functional.cross_entropy(model(x).flatten(0, 1), (7 * x.flatten() + 3) % 64).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, parameter in parameters.items():
        own = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach().contiguous()
        copies = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(copies, own, group=mesh.get_group("tp"))
        assert name in CUT or torch.equal(*copies), name


@scenario(4)
def what_tensor_parallelism_leaves_whole_stays_equal_on_its_ranks() -> None:
    cube = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tp"))
    for compressor in (gw.TopK(0.05), gw.QSGD()):
        model = fully_shard(partly_cut(cube), mesh=cube["shard"])
        handle, parameters = gw.attach(model, compressor, mesh=cube), dict(model.named_parameters())
        check_copies_stay_equal(model, parameters, torch.optim.SGD(model.parameters(), lr=0.1), cube)
        handle.detach()
        model = fully_shard(partly_cut(cube), mesh=cube["shard"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        local = gw.LocalSteps(optimizer, model, compressor, mesh=cube, inner_steps=2)
        check_copies_stay_equal(model, dict(model.named_parameters()), local, cube)
        local.handle.detach()
        model, mesh = partly_cut(cube), cube["replicate", "tp"]
        ddp = DistributedDataParallel(model, device_mesh=mesh["replicate"])
        parameters = dict(model.named_parameters())
        handle = gw.attach(ddp, compressor)
        check_copies_stay_equal(ddp, parameters, torch.optim.SGD(parameters.values(), lr=0.1), mesh)
        handle.detach()
    ddp = DistributedDataParallel(partly_cut(mesh), device_mesh=mesh["replicate"])
    refused(
        ValueError, "the ranks' copies of unsharded parameters would differ; name a compressor", lambda: gw.attach(ddp)
    )
    model = fully_shard(partly_cut(cube), mesh=cube["shard"])
    together = gw.Plan((gw.Group(tuple(parameters), gw.FP32(), gw.NoMemory(), gw.AllReduce()),))
    refused(ValueError, "is cut over other ranks", lambda: gw.attach(model, together, mesh=cube))
    assert set(gw.attach(model, mesh=cube).plan.names) == {*parameters}
    hybrid = fully_shard(partly_cut(cube), mesh=cube["replicate", "shard"])
    assert {*gw.attach(hybrid, gw.TopK(0.1)).plan.names} == {*parameters}
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tp"))
    inside = fully_shard(partly_cut(square), mesh=square["shard"])
    refused(ValueError, "whole, and its copies would part", lambda: gw.compress_shards(inside, gw.QSGD()))
    gw.compress_shards(inside, gw.FP32())


@scenario(8, long=True)
def what_memories_keep_beside_tensor_parallelism_adds_up_on_any_mesh() -> None:
    names = ("replicate", "shard", "tp")
    before = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    model, path = in_columns(before), folder()
    handle = gw.attach(model, gw.TopK(0.1), mesh=before)
    column_steps(model, before.get_local_rank(0))
    dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
    want = kept(model, handle, before)
    assert all(want[f"{layer}.weight"].any() for layer in ("first", "second"))
    for shape in ((2, 2, 2), (2, 4), (2, 1, 4), (4, 1, 2)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names[: len(shape)])
        other = in_columns(mesh)
        resumed = gw.attach(other, gw.TopK(0.1), mesh=mesh)
        dcp.load({"gradwire": resumed.stateful(path)}, checkpoint_id=path)
        got = kept(other, resumed, mesh)
        assert got.keys() == want.keys()
        for name, total in want.items():
            torch.testing.assert_close(got[name], total, rtol=0, atol=1e-7)
        column_steps(other, mesh.get_local_rank(0))
        resumed.detach()
    handle.detach()


class Heads(nn.Module):
    """Two heads, of which a pass may leave out the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 6), nn.Linear(8, 6)

    def forward(self, x: Tensor, both: bool) -> Tensor:
        return self.first(x) + (self.second(x) if both else 0)


def train_heads(ddp: nn.Module, both: bool, count: int) -> None:
    for step in range(count):
        ddp(torch.randn(4, 8, generator=torch.Generator().manual_seed(step + dist.get_rank())), both).sum().backward()


def checkpoint_keeps_memories(handle: gw.Handle, resumed: gw.Handle) -> None:
    """Of which some ranks have none."""
    path = folder()
    dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
    dcp.load({"gradwire": resumed.stateful(path)}, checkpoint_id=path)
    mine, read = handle.state_dict(), resumed.state_dict()
    residuals = [key for key in read if key.endswith("//residual")]
    has = torch.tensor([float(any(key in mine for key in residuals))])
    dist.all_reduce(has)
    assert 0 < has < dist.get_world_size()
    assert all(torch.equal(read[key], mine.get(key, torch.zeros_like(read[key]))) for key in residuals)


@scenario(4)
def a_checkpoint_has_the_memories_of_the_ranks_that_lead_hosts_alone() -> None:
    """Those of a plan that is no more in force, while DDP reduces by itself."""
    ddps, handles = [DistributedDataParallel(network()) for _ in range(2)], []
    for ddp in ddps:
        transport = gw.ProcessGroup.by_host(2)
        handles.append(gw.attach(ddp, gw.TopK(0.1), transport=transport, groups=gw.groups.of(count=1)))
        train(ddp, 2)
        handles[-1].replan(gw.NATIVE)
        train(ddp, 2)
    checkpoint_keeps_memories(*handles)


@scenario(2)
def a_checkpoint_has_the_memory_of_the_rank_that_never_uses_a_parameter_again() -> None:
    ddps = [DistributedDataParallel(Heads(), find_unused_parameters=True) for _ in range(2)]
    handles = []
    for ddp in ddps:
        handle = gw.attach(ddp, gw.TopK(0.1), groups=gw.groups.of(count=1), dense=lambda name, parameter: False)
        train_heads(ddp, True, 2)
        # both send what is left, but for this rank's part of the second head
        dense = gw.Group(handle.plan.groups[0].slots, gw.FP32(), gw.NoMemory(), gw.AllReduce())
        handle.replan(gw.Plan((dense,)))
        train_heads(ddp, dist.get_rank() == 0, 2)
        handles.append(handle)
    checkpoint_keeps_memories(*handles)


def without_state() -> Path:
    path = folder()
    dcp.save({"model": network()}, checkpoint_id=path)
    return path


# What cannot be


@scenario(4)
def what_does_not_fit_is_an_error_that_names_the_call() -> None:
    mesh, other = meshes()
    recipe = 'fully_shard(model, mesh=mesh["shard"])'
    refused(ValueError, "mesh= is for models that fully_shard has wrapped, not Branches; use mesh = init_device_mesh",
            lambda: gw.attach(Branches(), gw.TopK(0.1), mesh=mesh))  # fmt: skip
    refused(ValueError, recipe, lambda: gw.attach(wrapped(mesh["shard"]), gw.TopK(0.1)))
    refused(ValueError, "and a replica of the mesh is", lambda: gw.attach(wrapped(mesh["shard"]), mesh=other))
    refused(ValueError, "and a replica of the mesh is", lambda: gw.attach(fully_shard(Branches()), mesh=mesh))
    refused(ValueError, "and a replica of the mesh is", lambda: gw.attach(fully_shard(Branches()), mesh=other))
    part = Branches()
    part.first = fully_shard(part.first, mesh=mesh["shard"])
    refused(ValueError, "mesh= is for models that fully_shard", lambda: gw.attach(part, gw.TopK(0.1), mesh=mesh))
    ignoring = Branches()
    fully_shard(ignoring, mesh=mesh["shard"], ignored_params={ignoring.scale})
    refused(ValueError, "'scale' is not sharded", lambda: gw.attach(ignoring, gw.TopK(0.1), mesh=mesh))
    # the first parameter, of a model that has replicas
    ignoring = Branches()
    fully_shard(ignoring, mesh=mesh, ignored_params={ignoring.scale})
    refused(ValueError, "'scale' is not sharded", lambda: gw.attach(ignoring, gw.TopK(0.1)))
    taken = wrapped(mesh["shard"])
    taken.scale.register_post_accumulate_grad_hook(lambda parameter: None)
    refused(ValueError, "not in it", lambda: gw.attach(taken, gw.TopK(0.1), mesh=mesh))
    twice = wrapped(mesh["shard"])
    gw.attach(twice, gw.TopK(0.1), mesh=mesh)
    refused(ValueError, "call detach()", lambda: gw.attach(twice, gw.TopK(0.1), mesh=mesh))
    refused(ValueError, "FSDP2's ranks have shards of a matrix each",
            lambda: gw.attach(wrapped(mesh["shard"]), gw.Dion(), mesh=mesh))  # fmt: skip
    with torch.device("meta"):
        empty = fully_shard(Branches(), mesh=mesh["shard"])
    refused(ValueError, "call to_empty()", lambda: gw.attach(empty, gw.TopK(0.1), mesh=mesh))


@scenario(4)
def ranks_that_differ_are_an_error_on_the_whole_mesh() -> None:
    mesh = meshes()[0]
    seed = int(dist.get_rank() == 3)
    refused(ValueError, "the ranks differ in seed: 0 on ranks 0, 1, 2, 1 on rank 3",
            lambda: gw.attach(wrapped(mesh["shard"]), gw.TopK(0.1), mesh=mesh, seed=seed))  # fmt: skip


@scenario(4)
def parameters_that_are_replaced_after_attaching_are_an_error() -> None:
    for mesh in meshes():
        model = wrapped(mesh["shard"])
        gw.attach(model, gw.TopK(0.1), mesh=mesh)
        loss_of(model, 0).backward()
        model.load_state_dict(model.state_dict(), assign=True)
        refused(RuntimeError, "was replaced after attach()", lambda model=model: loss_of(model, 1))


@scenario(2)
def a_model_moves_after_detach_and_not_unnoticed_before() -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    for move in (nn.Module.cpu, nn.Module.double):
        model = with_a_list(mesh["shard"])
        handle = gw.attach(model, gw.FP32(), mesh=mesh)
        flat_gradients(model)
        move(model[1])
        refused(RuntimeError, "was moved after attach(), ", lambda model=model: model(torch.ones(3, 4)))
        handle.detach()
        handle = gw.attach(move(model), gw.FP32(), mesh=mesh)
        handle.detach()
        model.double()
    # rounds have the shards themselves
    local = with_a_list(mesh["shard"])
    optimizer = gw.LocalSteps(torch.optim.SGD(local.parameters(), lr=0.1), local, inner_steps=2, mesh=mesh)
    flat_gradients(local)
    optimizer.step()
    local.double()
    refused(RuntimeError, "was moved after", optimizer.step)
    optimizer.handle.detach()


@scenario(4)
def gradients_outside_of_a_backward_pass_are_refused() -> None:
    """As torch's pipeline stages have FSDP reduce what their micro-batches have added up."""
    mesh = meshes()[0]
    model = wrapped(mesh["shard"])
    gw.attach(model, gw.TopK(0.1), mesh=mesh)
    model.set_requires_gradient_sync(False)
    loss_of(model, 0).backward()
    model.set_requires_gradient_sync(True)
    refused(RuntimeError, "outside of a backward pass, as torch's pipeline schedules",
            lambda: [group.post_backward() for group in fsdp_groups(model)])  # fmt: skip


@scenario(4)
def gradients_that_come_with_finalize_backward_are_refused() -> None:
    """As under torch 2.15's pipeline stages."""
    mesh = meshes()[0]
    model = wrapped(mesh["shard"])
    if not hasattr(model, "set_manual_backward_finalization"):
        return
    gw.attach(model, gw.TopK(0.1), mesh=mesh, find_unused_parameters=True)
    model.set_manual_backward_finalization(True)
    refused(RuntimeError, "call model.set_manual_backward_finalization(False)", lambda: loss_of(model, 0).backward())


def attached(model: nn.Module, mesh: DeviceMesh) -> gw.Handle:
    return gw.attach(model, gw.FP32(), mesh=mesh, find_unused_parameters=True)


def compressed(model: nn.Module, mesh: DeviceMesh) -> ShardCompression:
    return gw.compress_shards(model, gw.BF16())


def in_rounds(model: nn.Module, mesh: DeviceMesh) -> gw.Handle:
    return gw.LocalSteps(torch.optim.SGD(model.parameters(), lr=0.1), model, inner_steps=5, mesh=mesh).handle


@scenario(2)
def a_backward_pass_that_failed_ends_the_training_unless_fsdp_is_reset() -> None:
    """As FSDP itself goes on with other gradients than those of the next pass: without the root's, or with old ones."""
    for way, shape in ((attached, (2, 1)), (in_rounds, (2, 1)), (compressed, (1, 2))):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        model, once, again = (wrapped(mesh["shard"]) for _ in range(3))
        handle = way(model, mesh)
        fail_in_backward(model)
        refused(RuntimeError, "a backward pass has failed", lambda model=model: loss_of(model, 0))
        handle.detach()
        # torch 2.13's own way to go on, which keeps whole gradients
        if hasattr(model, "reset_iter_state"):
            way(once, mesh)
            loss_of(once, 0).backward()
            way(again, mesh)
            fail_in_backward(again)
            again.reset_iter_state()
            again.zero_grad()
            loss_of(again, 0).backward()
            assert equal(gradients(again), gradients(once)), way


def fail_in_backward(model: nn.Module) -> None:
    """Fails behind the head, whose gradients are not reduced yet."""
    hook = model.side.register_forward_hook(lambda module, arguments, output: output.register_hook(fail) and None)
    refused(ArithmeticError, "no gradient", lambda: loss_of(model, 0).backward())
    hook.remove()


def fail(gradient: Tensor) -> None:
    raise ArithmeticError("no gradient")


@scenario(4)
def detached_is_native_again_or_trains_no_more() -> None:
    for mesh in meshes():
        native, on_both, on_shards = wrapped(mesh), wrapped(mesh), wrapped(mesh["shard"])
        gw.attach(on_both, gw.TopK(0.01)).detach()
        gw.attach(on_shards, gw.TopK(0.01), mesh=mesh).detach()
        for model in (native, on_both):
            loss_of(model, 0).backward()
        assert equal(gradients(on_both), gradients(native))
        refused(RuntimeError, "call attach() again", lambda model=on_shards: loss_of(model, 0))
        with torch.no_grad():
            loss_of(on_shards, 0)
        gw.attach(on_shards, as_fsdp_groups(native, gw.FP32()), mesh=mesh)
        loss_of(on_shards, 0).backward()
        assert equal(gradients(on_shards), gradients(native))
        # local steps need no exchange between replicas in each step
        local = wrapped(mesh["shard"])
        gw.attach(local, gw.TopK(0.01), mesh=mesh).detach()
        optimizer = gw.LocalSteps(torch.optim.SGD(local.parameters(), 0.1), local, inner_steps=5, mesh=mesh)
        loss_of(local, 0).backward()
        optimizer.step()


@scenario(4)
def hooks_of_shards_go_with_their_handle() -> None:
    mesh = meshes()[0]
    model, on_both = wrapped(mesh["shard"]), wrapped(mesh)
    counts, before = [], hooks_on(on_both)
    for _ in range(3):
        handle = gw.attach(model, gw.TopK(0.1), mesh=mesh)
        loss_of(model, 0).backward()
        counts.append(hooks_on(model))
        handle.detach()
        handle = gw.attach(on_both, gw.TopK(0.1))
        loss_of(on_both, 0).backward()
        handle.detach()
        assert hooks_on(on_both) == before
    assert counts[0] == counts[1] == counts[2]
    # what has to be seen after the last
    refused(RuntimeError, "call attach() again", lambda: loss_of(model, 0))


def hooks_on(model: nn.Module) -> list[int]:
    return [len(model._forward_pre_hooks), len(model._forward_hooks), len(model._load_state_dict_post_hooks)]


@scenario(4)
def replicas_begin_with_the_first_ones_values() -> None:
    for mesh in meshes():
        torch.manual_seed(mesh.get_local_rank("replicate"))
        model = fully_shard(Branches(), mesh=mesh["shard"])
        assert not same_between_replicas(shards_of(model), mesh)
        gw.attach(model, gw.TopK(0.1), mesh=mesh)
        assert same_between_replicas(shards_of(model), mesh)


# Complex parameters, and buffers that are not dense


class ComplexBranches(nn.Module):
    """Uneven shards, empty ones, and a vector; all complex, for FSDP wants one type."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        draw = partial(torch.randn, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))
        self.first, self.side = nn.Parameter(draw(7, 8)), nn.Parameter(draw(7, 8))
        self.row, self.bias = nn.Parameter(draw(1, 7)), nn.Parameter(draw(7))
        self.register_buffer("expanded", torch.randn(64, 1).expand(64, 3))
        self.register_buffer("every_other", torch.randint(0, 99, (4, 6), dtype=torch.int16)[:, ::2])

    def forward(self, x: Tensor, side: bool = True) -> Tensor:
        h = x.to(torch.complex64)[..., None] * self.first.sum(1).conj() * self.row + self.bias
        return (h * self.side.conj().sum(1) if side else h).abs()


@scenario(4)
def complex_parameters_are_reduced_as_in_native_hsdp() -> None:
    for mesh in meshes():
        native, ours = fully_shard(ComplexBranches(), mesh=mesh), fully_shard(ComplexBranches(), mesh=mesh["shard"])
        gw.attach(ours, as_fsdp_groups(native, gw.FP32()), mesh=mesh, find_unused_parameters=True)
        for step in range(3):
            for model in (native, ours):
                loss_of(model, step, side=step != 1).backward()
            for mine, fsdps in zip(gradients(ours), gradients(native), strict=True):
                torch.testing.assert_close(mine, fsdps)
            for model in (native, ours):
                model.zero_grad()


@scenario(4)
def what_memories_keep_of_complex_shards_adds_up_on_another_mesh() -> None:
    (mesh, line_of_four), path = meshes(), folder()
    model = fully_shard(ComplexBranches(), mesh=mesh["shard"])
    handle = gw.attach(model, gw.TopK(0.1), mesh=mesh, dense=lambda name, p: False)
    steps(model, torch.optim.SGD(model.parameters(), lr=0.1), range(3))
    assert handle.verify() == []
    dcp.save({"gradwire": handle.stateful()}, checkpoint_id=path)
    other = fully_shard(ComplexBranches(), mesh=line_of_four["shard"])
    resumed = gw.attach(other, gw.TopK(0.1), mesh=line_of_four, dense=lambda name, p: False)
    dcp.load({"gradwire": resumed.stateful(path)}, checkpoint_id=path)
    assert all(tensor.shape[-1] == 2 for key, tensor in resumed.state_dict().items() if "//residual" in key)
    before, after = kept(model, handle, mesh), kept(other, resumed, line_of_four)
    assert any(total.any() for total in before.values())
    torch.testing.assert_close(after, before)


@scenario(4)
def buffers_with_gaps_are_the_first_replicas() -> None:
    for mesh in meshes():
        torch.manual_seed(mesh.get_local_rank("replicate"))
        model = fully_shard(ComplexBranches(mesh.get_local_rank("replicate")), mesh=mesh["shard"])
        gw.attach(model, gw.TopK(0.1), mesh=mesh)
        torch.manual_seed(0)
        first = ComplexBranches()
        assert torch.equal(model.expanded, first.expanded)
        assert torch.equal(model.every_other, first.every_other)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.full_tensor(), first.get_parameter(name)), name


@scenario(2, 4)
def complex_shards_are_sent_in_few_bits() -> None:
    exact, coarse = fully_shard(ComplexBranches(), mesh=line()), fully_shard(ComplexBranches(), mesh=line())
    gw.compress_shards(coarse, gw.Quantized(8), gw.Quantized(8))
    for model in (exact, coarse):
        loss_of(model, 0).backward()
    got, want = (torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()]) for model in (coarse, exact))
    assert 0 < (got - want).abs().max() < 0.05 * want.abs().max()


@scenario(4, long=True)
def controllers_decide_alike_for_the_whole_mesh() -> None:
    mesh = meshes()[0]
    controllers = [
        gw.GraVAC(2, 64, window=4), gw.LGreCo(interval=10), gw.Accordion(0.3, 0.05, Halving(), interval=5),
        gw.WarmUp(0.5, steps=20), gw.CAT(2, 64), None,
    ]  # fmt: skip
    for controller in controllers:
        model = wrapped(mesh["shard"], whole=True)
        handle = gw.attach(model, gw.TopK(0.1) if controller else None, mesh=mesh, controller=controller)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plans = []
        for step in range(24 if controller else 40):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            plans.append(crc32(handle.plan.to_json().encode()))
        assert same_between_replicas(shards_of(model), mesh), controller
        assert same_on_all_ranks(torch.tensor(plans)), controller
        assert len(set(plans)) > 1, controller
        handle.detach()


# Plain FSDP over a slow link


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))


def everyones(tensor: Tensor) -> Tensor:
    rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, tensor)
    return torch.stack(rows)


def block_maxima(x: Tensor, block: int) -> Tensor:
    """Of each element's block."""
    padded = nn.functional.pad(x.abs(), (0, -x.shape[-1] % block))
    largest = padded.unflatten(-1, (-1, block)).amax(-1)
    return largest.repeat_interleave(block, -1)[..., : x.shape[-1]]


@scenario(2, 4)
def gradients_of_shards_are_summed_in_few_bits() -> None:
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    n = 3001
    for codec, block, step in (
        (gw.QSGD(), 1024, 1 / 127),
        (gw.Quantized(8), 64, 1 / 254 + 1 / 256),
        (gw.BF16(), 1, 1 / 256),
    ):
        comm = ShardReduceScatter(codec, {}, 0)
        for dtype in (torch.float32, torch.bfloat16):
            mine = torch.randn(world * n, generator=torch.Generator().manual_seed(rank)).to(dtype)
            parts = everyones(mine).view(world, world, n)[:, rank].float()
            got = comm.allocate((n,), dtype=dtype, device=mine.device)
            comm(got, mine.clone(), group, dist.ReduceOp.AVG)
            off = (got.float() - parts.mean(0)).abs()
            rounding = parts.mean(0).abs() / 256 if dtype == torch.bfloat16 else 1e-6
            assert (off <= block_maxima(parts, block).mean(0) * step + rounding).all(), (codec, dtype)
        assert comm.wire_bytes == 2 * (world - 1) * framed(codec.payload_bytes(n))
        assert comm.dense_bytes == (world - 1) * n * (4 + 2)
        mine = torch.ones(world * n)
        if rank == 1:
            mine[5] = torch.inf  # belongs to rank 0
        got = torch.empty(n)
        comm(got, mine, group, dist.ReduceOp.SUM)
        assert got.isfinite().all() == (rank != 0)
    comm = ShardReduceScatter(gw.QSGD(), {}, 0)
    got, mine = torch.empty(n), torch.zeros(world * n)
    refused(
        ValueError, "call set_force_sum_reduction_for_comms(True) as well",
        lambda: comm(got, mine, group, dist.ReduceOp.MAX),
    )  # fmt: skip


@scenario(2, 4)
def weights_are_put_together_in_few_bits_alike_on_all_ranks() -> None:
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    n = 3001
    comm = ShardAllGather(gw.Quantized(8), {}, 0)
    for dtype in (torch.float32, torch.bfloat16):
        whole = torch.empty(world * n, dtype=dtype)
        mine = whole[rank * n : (rank + 1) * n].copy_(torch.randn(n, generator=torch.Generator().manual_seed(rank)))
        exact = everyones(mine.clone())
        assert comm(whole, mine, group) is None
        assert same_on_all_ranks(whole)
        off = (whole.view(world, n) - exact).abs().float()
        assert (off <= block_maxima(exact.float(), 64) * (1 / 254 + 1 / 128)).all()
    bytes_of_two_types = torch.zeros(world, 8, dtype=torch.uint8)
    bytes_of_two_types[rank] = rank + 1
    comm(bytes_of_two_types.view(-1), bytes_of_two_types[rank], group)
    assert bytes_of_two_types.float().mean(1).tolist() == list(range(1, world + 1))


@scenario(4)
def replicas_of_a_shard_round_their_gradients_each_by_itself() -> None:
    """The same noise in all of them would be in their mean as it is in one, whoever adds them up."""
    (mesh, _), n = meshes(), 640
    attached = wrapped(mesh)
    gw.attach(attached, gw.TopK(0.1))
    for model in wrapped(mesh), attached, wrapped(mesh["shard"]):
        comm = gw.compress_shards(model, gw.QSGD())._comms[0]
        got, same = torch.empty(n), torch.randn(2 * n, generator=torch.Generator().manual_seed(0))
        comm(got, same, mesh.get_group("shard"), dist.ReduceOp.SUM)
        of_all = everyones(got)
        for shard in 0, 1:
            assert not torch.equal(of_all[shard], of_all[shard + 2])


@scenario(4, long=True)
def models_train_with_shards_that_are_sent_in_few_bits() -> None:
    def run(*codecs: gw.Codec, steps: int = 6, **policy) -> tuple[Branches, list[float], Any]:
        model = wrapped(line(), **policy)
        compression = gw.compress_shards(model, *codecs) if codecs else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(steps):
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return model, losses, compression

    for policy in ({}, {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}, {"reshard_after_forward": 2}):
        native, dense, _ = run(**policy)
        exact, same, compression = run(gw.FP32(), **policy)
        assert same == dense
        assert equal(local_parameters(exact), local_parameters(native))
        assert compression.traffic() == (0, 0)
        for codecs, tolerance in (
            ((gw.QSGD(),), 0.02), ((gw.QSGD(), gw.Quantized(8)), 0.05), ((gw.Quantized(4), gw.Quantized(8)), 0.2),
        ):  # fmt: skip
            _, losses, compression = run(*codecs, **policy)
            assert losses != dense
            assert max(abs(a - b) for a, b in zip(losses, dense, strict=True)) < tolerance * dense[0], codecs
            assert compression.traffic().wire_bytes > 0
    model, _, compression = run(gw.QSGD(), gw.Quantized(8), steps=1)
    compression.detach()
    fresh = wrapped(line())
    for name, parameter in fresh.named_parameters():
        parameter.data.copy_(dict(model.named_parameters())[name].data)
    for each in (model, fresh):
        loss_of(each, 7).backward()
    assert equal(gradients(model), gradients(fresh))


def local_parameters(model: nn.Module) -> list[Tensor | None]:
    return [p.to_local() for p in model.parameters()]


@scenario(2, 4)
def what_a_reduce_scatter_loses_is_added_to_the_next() -> None:
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    n = 3001
    for codec in (gw.TopK(0.05), gw.ChunkTopK(), gw.EFSignSGD(), gw.Quantized(4), gw.BF16()):
        comm, given, received = ShardReduceScatter(codec, {}, 0, gw.Residual()), torch.zeros(world * n), torch.zeros(n)
        generator, got = torch.Generator().manual_seed(rank), torch.empty(n)
        for _ in range(5):
            mine = torch.randn(world * n, generator=generator)
            given += mine
            comm(got, mine, group, dist.ReduceOp.SUM)
            received += got
        owed = everyones(comm.residual).sum(0)[rank]  # what all ranks have not sent to this one
        assert owed.any()
        torch.testing.assert_close(
            received + owed, everyones(given).sum(0).view(world, n)[rank], rtol=0, atol=1e-4, msg=str(codec)
        )
        before = comm.residual.clone()
        comm(got, torch.full((world * n,), torch.nan if rank == 1 else 1.0), group, dist.ReduceOp.SUM)
        assert got.isnan().all()
        assert torch.equal(comm.residual, before) == (rank == 1)
        assert comm.residual.isfinite().all()


@scenario(2)
def a_memory_of_shards_ends_without_a_trace_and_is_of_what_was_trained() -> None:
    if not can_reduce_unused():
        return
    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), mesh=line())
    model[1].requires_grad_(False)
    (group,) = fsdp_groups(model)
    compression = gw.compress_shards(torch.compile(model), gw.TopK(0.3), memory=gw.Residual())
    model(torch.ones(2, 4)).sum().backward()
    # others of the same size are not owed that
    for layer, trained in zip(model, (False, True), strict=True):
        layer.requires_grad_(trained)
    refused(ValueError, "memories are of others", lambda: model(torch.ones(2, 4)).sum().backward())
    # two at once would bring back each other's collectives
    refused(ValueError, "compressed already; call detach()", lambda: gw.compress_shards(model, gw.QSGD()))
    compression.detach()
    assert not group.reduce_scatter_unused_params
    gw.compress_shards(model, gw.TopK(0.3), memory=gw.Residual())
    compression.detach()
    assert group.reduce_scatter_unused_params


@scenario(2)
def a_memory_of_shards_grows_by_no_more_than_its_limit() -> None:
    world, group, limits = dist.get_world_size(), dist.group.WORLD, (None, 2.0)
    comms = [ShardReduceScatter(gw.TopK(0.05), {}, 0, gw.Residual(limit=limit)) for limit in limits]
    for scale in (1.0, 1000.0):
        before = [0 if comm.residual is None else comm.residual.norm(dim=1) for comm in comms]
        for comm in comms:
            mine = torch.randn(world * 300, generator=torch.Generator().manual_seed(0)) * scale
            comm(torch.empty(300), mine, group, dist.ReduceOp.SUM)
    free, limited = [comm.residual.norm(dim=1) for comm in comms]
    assert (free > 100 * before[0]).all()
    torch.testing.assert_close(limited, 2.0 * before[1])


@scenario(4, long=True)
def models_train_with_a_memory_of_what_shards_did_not_send() -> None:
    def run(codec: gw.Codec | None, memory: gw.Residual | None = None) -> float:
        model = wrapped(line(), whole=True)
        if codec:
            gw.compress_shards(model, codec, memory=memory)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(36):
            loss = loss_of(model, step % 6, side=step % 2 == 0)  # an unused branch moves nothing in the buffer
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    if not can_reduce_unused():
        return
    first = loss_of(wrapped(line()), 5, side=False).item()
    dense, forgetting = run(None), run(gw.Quantized(2))
    assert abs(run(gw.Quantized(2), gw.Residual()) - dense) < abs(forgetting - dense)
    for codec in (gw.ChunkTopK(8, of=64), gw.EFSignSGD()):
        assert run(codec, gw.Residual()) < first / 2, codec


@scenario(4)
def shards_that_cannot_be_compressed_are_refused() -> None:
    alone = dist.get_rank() == 1
    model = wrapped(line())
    refused(ValueError, "call fully_shard(model) first", lambda: gw.compress_shards(Branches(), gw.QSGD()))
    refused(ValueError, "needs a memory", lambda: gw.compress_shards(model, gw.TopK(0.1) if alone else gw.QSGD()))
    refused(ValueError, "needs a memory", lambda: gw.compress_shards(model, gw.QSGD(), gw.EFSignSGD()))
    refused(ValueError, "gradients", lambda: gw.compress_shards(model, gw.QSGD(15) if alone else gw.QSGD()))
    refused(ValueError, "gw.QSGD()", lambda: gw.compress_shards(model, "qsgd"))
    refused(ValueError, "gw.Residual()", lambda: gw.compress_shards(model, gw.QSGD(), memory=gw.DGCMemory()))
    refused(ValueError, "memory", lambda: gw.compress_shards(model, gw.QSGD(), memory=gw.Residual() if alone else None))
    short = gw.Residual(dtype=torch.bfloat16)
    refused(ValueError, "keeps float32", lambda: gw.compress_shards(model, gw.QSGD(), memory=short))
    with patch("gradwire.frontends.shards.shard_compression.can_reduce_unused", lambda: False):  # torch before 2.13
        refused(ValueError, "needs torch 2.13", lambda: gw.compress_shards(model, gw.QSGD(), memory=gw.Residual()))
    for mesh in meshes():  # replicas are compared as well
        seed = dist.get_rank() // (dist.get_world_size() // 2)
        refused(ValueError, "differ in seed", partial(gw.compress_shards, wrapped(mesh), gw.QSGD(), seed=seed))
    loss_of(model, 0).backward()


@scenario(4)
def replicas_of_shards_are_compared_and_mended() -> None:
    for mesh in meshes():
        model = wrapped(mesh["shard"])
        handle = gw.attach(model, gw.TopK(0.1), mesh=mesh)
        loss_of(model, 0).backward()
        assert handle.verify() == []
        before = [parameter.clone() for parameter in local_parameters(model)]
        own = model.embed.weight.to_local().detach()
        if dist.get_rank() == 1:
            own[:1].neg_()
        if mesh.size(0) == 2:  # ranks 1 and 3 hold this shard
            refused(RuntimeError, "'embed.weight' has other values on rank 3 than on rank 1;", handle.verify)
            refused(RuntimeError, "no majority", partial(handle.verify, heal=True))
            continue
        refused(RuntimeError, "'embed.weight' has other values on rank 1 than on ranks 0, 2, 3;", handle.verify)
        assert handle.verify(heal=True) == ["embed.weight"]
        assert equal(local_parameters(model), before)


# Parameters that are frozen and thawed between steps

PHASES = (("embed", "first", "second", "side", "frozen"), ("embed", "frozen"), ("frozen", "head"), ())


def freeze(model: nn.Module, frozen: tuple[str, ...]) -> None:
    for name, part in model.named_children():
        part.requires_grad_(name not in frozen)


def phases(model: nn.Module, steps: int = 2):
    """Trains, with other parts frozen in every phase, and yields after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for phase, frozen in enumerate(PHASES):
        freeze(model, frozen)
        for step in range(steps):
            loss_of(model, steps * phase + step).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield frozen


def whole(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().full_tensor().flatten() for p in model.parameters()])


@scenario(4)
def what_is_frozen_and_thawed_is_averaged_as_native_hsdp_does() -> None:
    for mesh in meshes():
        native, ours = wrapped(mesh), wrapped(mesh["shard"])
        freeze(ours, PHASES[0])
        handle = gw.attach(ours, gw.FP32(), mesh=mesh)
        sent = [0]
        for _ in zip(phases(native), phases(ours), strict=True):
            torch.testing.assert_close(whole(ours), whole(native))
            sent.append(handle.stats().wire_bytes)
        steps = [after - before for before, after in pairwise(sent)]
        assert steps[0] == steps[1] < steps[6] / 4, "what is frozen is not sent"
        assert handle.verify() == []
        handle.detach()


@scenario(4, long=True)
def replicas_stay_the_same_when_layers_are_thawed_later() -> None:
    for compressor in (gw.TopK(0.1), gw.PowerSGD(2)):
        mesh = meshes()[0]
        ours = wrapped(mesh)
        freeze(ours, PHASES[0])
        handle = gw.attach(ours, compressor)
        kept: dict[tuple[str, ...], Tensor] = {}
        for frozen in phases(ours, 3):
            state = handle.state_dict()
            assert "embed.weight//residual" not in state or "embed" not in frozen
            if "head" in frozen:
                kept.setdefault(frozen, state["head.weight//residual"])
                assert torch.equal(state["head.weight//residual"], kept[frozen])
            assert handle.verify() == []
        assert same_on_all_ranks(whole(ours)), compressor
        with torch.no_grad():
            ours.frozen.requires_grad_(False).weight.to_local()[:] += dist.get_rank() // 2
        refused(RuntimeError, "parameter 'frozen.weight' has other values", handle.verify)
        handle.detach()


@scenario(4)
def shards_that_are_thawed_on_some_ranks_alone_end_the_job_on_all() -> None:
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    ours = wrapped(mesh["shard"])
    handle = gw.attach(ours, gw.TopK(0.1), mesh=mesh)
    loss_of(ours, 0).backward()
    (ours.frozen if dist.get_rank() else ours.head).weight.requires_grad_(bool(dist.get_rank()))
    refused(ValueError, "the ranks differ in requires_grad of 'head.weight'", lambda: loss_of(ours, 1))
    handle.detach()
