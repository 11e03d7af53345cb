"""Under other trainers: saved and resumed by them, on as many ranks and on others."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from gradwire.integrations import framework
from tests.support.ranks import run_python, run_ranks

SCRIPT = Path(__file__).parents[1] / "processes" / "trainers.py"
IMPORTS = {"accelerate": "accelerate", "huggingface": "transformers.trainer"}


def run(world: int, name: str, folder: Path, phase: str) -> None:
    argv, imports = [str(SCRIPT), name, str(folder), phase], [IMPORTS.get(name, "lightning")]
    if world > 1:
        run_ranks(argv, world, imports=imports, cwd=folder)
    else:
        run_python(argv, imports=imports, cwd=folder)


@pytest.mark.parametrize(
    ("name", "worlds"),
    [("accelerate", (3, 1)), ("lightning", (1,)), ("lightning_strategy", (3,)), ("huggingface", (3,))],
)
def test_a_training_goes_on_from_what_its_trainer_saved(name: str, worlds: tuple[int, ...], tmp_path: Path):
    pytest.importorskip({"huggingface": "transformers"}.get(name, name.removesuffix("_strategy")))
    run(2, name, tmp_path, "save")
    for world in worlds:
        run(world, name, tmp_path, "resume")


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """A model whose shards lie on two ranks of each replica, of which this process pretends to be the first."""
    # without Ray, which is not among what development needs
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_checkpoint=lambda: None))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    yield fully_shard(nn.Linear(3, 4), mesh=mesh)
    dist.destroy_process_group()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["accelerate", "lightning", "huggingface", "ray"])
def test_shards_are_refused_before_the_first_step(
    name: str, compiled: bool, sharded: nn.Module, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip({"huggingface": "transformers", "ray": "torch"}.get(name, name))
    trainer: Any = import_module(f"gradwire.integrations.{name}")
    monkeypatch.setattr(framework, "attach", lambda *arguments, **options: pytest.fail("attached"))
    model: Any = torch.compile(sharded, backend="eager") if compiled else sharded
    holder, nothing = Mock(scaler=None), Mock()
    holder.model_wrapped = holder.strategy.model = model

    def begin() -> None:
        match name:
            case "accelerate":
                trainer.compress(holder, model, "topk")
            case "lightning":
                trainer.GradientCompression("topk").on_train_start(holder, nothing)
            case "huggingface":
                trainer.CompressionCallback(holder, "topk").on_train_begin(nothing, nothing, nothing)
            case _:
                trainer.compress(model, "topk")

    with pytest.raises(
        ValueError, match=r"no place for the state of shards; use gw.attach\(model, ...\) and give "
    ) as e:
        begin()
    assert "\n" not in str(e.value)


def test_whole_models_are_attached_to(sharded: nn.Module, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(framework, "attach", lambda model, *arguments, **options: model)
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    for whole in (nn.Linear(3, 4), fully_shard(nn.Linear(3, 4), mesh=mesh)):
        assert framework.attach_whole(whole) is whole
