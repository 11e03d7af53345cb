"""Under other trainers: saved and resumed by them, on as many ranks and on others."""

import sys
from collections.abc import Iterator
from importlib import import_module
from logging import WARNING
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

import gradwire as gw
from gradwire.frontends.idle import Nothing
from gradwire.integrations import framework
from gradwire.saving import save
from tests.support import harness
from tests.support.harness import SMALL, draw, plan_of, raising, slots_of, together
from tests.support.ranks import run_python, run_ranks

SLOTS = slots_of(SMALL)
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


@pytest.mark.parametrize("sees", [0, 1])
def test_rank_0_tells_the_others_what_transformers_checkpoint_has_of_gradwire(
    sees: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Where only one of two hosts sees the file, none waits for the other."""
    huggingface = pytest.importorskip("gradwire.integrations.huggingface")
    with harness.job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        handles = [gw.Handle(runtime, Nothing()) for runtime in running.runtimes]
        running.step(draw(SLOTS, 2, 0))
        saved = running.state("residual")
        own, _ = raising(together(2, lambda rank: handles[rank].state_dict(all_ranks=True)))
        (tmp_path / str(sees)).mkdir()
        save(own, tmp_path / str(sees) / huggingface.FILE)
        running.step(draw(SLOTS, 2, 1))
        kept = running.state("residual")
        monkeypatch.setattr(huggingface, "attach_whole", lambda model, *_, **__: handles[model])

        def resume(rank: int) -> None:
            trainer = SimpleNamespace(
                train=lambda *_: None, model_wrapped=rank, accelerator=SimpleNamespace(scaler=None),
                args=SimpleNamespace(output_dir=""),
            )  # fmt: skip
            callback = huggingface.CompressionCallback(trainer)
            trainer.train(str(tmp_path / str(rank)))
            callback.on_train_begin(trainer.args, SimpleNamespace(is_world_process_zero=rank == 0), None)

        with caplog.at_level(WARNING):
            raising(together(2, resume))
        torch.testing.assert_close(running.state("residual"), kept if sees else saved, rtol=0, atol=0)
    assert ("is not there; training goes on without that checkpoint's memories" in caplog.text) == bool(sees)


def test_a_checkpoint_of_lightnings_without_gradwires_state_is_spoken_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    lightning = pytest.importorskip("gradwire.integrations.lightning")
    monkeypatch.setattr(lightning, "attach_whole", lambda *_, **__: gw.Handle(None, Nothing()))
    strategy, says = SimpleNamespace(model=torch.nn.Linear(2, 2)), "has nothing of Gradwire; training goes on without"
    callback = lightning.GradientCompression("topk:0.1")
    for path in (None, "last.ckpt"):
        trainer = SimpleNamespace(strategy=strategy, precision_plugin=None, optimizers=[], ckpt_path=path)
        with caplog.at_level(WARNING):
            callback.on_train_start(trainer, None)
        assert (f"last.ckpt {says}" in caplog.text) == bool(path)


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
