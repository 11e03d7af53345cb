"""Runs the scenarios of sharded models over real gloo."""

from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

import gradwire as gw
from gradwire.compressors import Codec
from gradwire.frontends.checkpoints.distributed_checkpoint import sharded_specs
from gradwire.frontends.shards import shard_collectives
from gradwire.frontends.shards.shard_collectives import ShardAllGather
from gradwire.frontends.shards.shard_compression import _check
from gradwire.frontends.shards.shard_gradients import ShardedGradients
from gradwire.frontends.shards.sharded_models import planned_slots
from gradwire.torch_private.fully_shard import is_cut
from tests.processes import shards
from tests.processes.launched import cases, check


@pytest.mark.parametrize(("name", "world"), cases(shards))
def test_scenario(name, world):
    check(shards, name, world)


@pytest.mark.parametrize(
    ("gradients", "weights", "reason"),
    [
        (gw.PowerSGD(4), gw.BF16(), "PowerSGD(.*) sends no shards"),
        (gw.QSGD(), gw.ACPSGD(4), "ACPSGD(.*) sends no shards"),
        (gw.TopK(0.1), gw.BF16(), "TopK(.*) needs a memory for gradients"),
        (gw.QSGD(), gw.TopK(0.1), "TopK(.*) needs a memory, which weights do not have"),
    ],
)
def test_a_codec_that_cannot_send_shards_is_told_why(gradients: Codec, weights: Codec, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*; use gw.QSGD"):
        _check(gradients, weights, None)


def test_collectives_of_two_streams_share_no_buffers(monkeypatch: pytest.MonkeyPatch):
    """As FSDP's own all-gathers and unshard(async_op=True), which do not wait for each other."""
    current = [3]
    monkeypatch.setattr(shard_collectives, "stream_of", lambda device: current[0], raising=False)
    comm, group = ShardAllGather(gw.QSGD(), {}, 0), Mock(rank=lambda: 0, size=lambda: 2)
    first = comm._context(8, group, torch.device("cpu")).buffers
    current[0] = 4
    second = comm._context(8, group, torch.device("cpu")).buffers
    assert second is not first
    current[0] = 3
    assert comm._context(8, group, torch.device("cpu")).buffers is first


@pytest.fixture
def rank() -> Iterator[int]:
    """One of 8 ranks, of which there is no other."""
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield 5
    dist.destroy_process_group()


def test_shards_beside_tensor_parallelism_are_where_torch_says(rank: int):
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tp"))
    model = shards.in_columns(mesh)
    parameters = dict(model.named_parameters())
    assert is_cut(model)
    largest = {slot.name: slot.numel for slot in planned_slots(parameters)}
    assert largest == {"first.weight": 3 * 6, "first.bias": 3, "second.weight": 2 * 6, "second.bias": 2}
    for name, placed in sharded_specs(mesh, parameters).items():
        own = parameters[name]
        shape, offset = compute_local_shape_and_global_offset(own.shape, own.device_mesh, own.placements)
        row = placed.row(own.to_local())
        assert compute_local_shape_and_global_offset(row.shape, row.device_mesh, row.placements) == (
            (1, *shape), (rank // 4, *offset),
        )  # fmt: skip
    other = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "tp", "shard"))
    cut = dict(shards.in_columns(other).named_parameters())
    assert sharded_specs(other, {"": cut["second.weight"]})
    with pytest.raises(ValueError, match=r"in another order than shards, .*; attach with one of that order"):
        sharded_specs(other, cut)


def test_a_gradient_is_read_once_it_is_on_the_host():
    """Before torch 2.13 FSDP calls hooks while it copies, from a GPU to pinned memory."""
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.zeros(3)
    event = Mock(synchronize=lambda: parameter.grad.fill_(1.0))
    own = SimpleNamespace(sharded_param=parameter, offload_to_cpu=True, grad_offload_event=event)
    places = ShardedGradients([SimpleNamespace(fsdp_params=[own], gradient_divide_factor=None)], 2)
    assert places.gradient(parameter).clone().tolist() == [1.0, 1.0, 1.0]
    # where its memory is not pinned, or FSDP has waited
    own.grad_offload_event = None
    assert places.gradient(parameter) is not None


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
def test_a_backward_pass_that_failed_ends_the_training_of_a_process_alone():
    """As FSDP then has whole parameters in the model, and gives the optimizer's no gradients."""
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    model = shards.wrapped(mesh["shard"])
    handle = shards.attached(model, mesh)
    shards.fail_in_backward(model)
    with pytest.raises(RuntimeError, match="a backward pass has failed"):
        shards.loss_of(model, 0)
    handle.detach()
