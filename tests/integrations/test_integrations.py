"""Under other trainers: saved and resumed by them, on as many ranks and on others."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from inspect import signature
from logging import WARNING
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import gradwire as gw
from gradwire.atomic_file import save
from gradwire.frontends.null_job import NullFrontEnd
from gradwire.integrations import framework
from tests.processes import trainers
from tests.support import harness
from tests.support.harness import SMALL, draw, plan_of, raising, slots_of, together
from tests.support.ranks import run_python, run_ranks

SLOTS, FILE = slots_of(SMALL), "gradwire.pt"
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


RANK = threading.local()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The adapter of Ray Train, which is not among what development needs; each thread is a worker."""
    context = SimpleNamespace(get_world_rank=lambda: RANK.rank)
    train = SimpleNamespace(get_checkpoint=lambda: None, get_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    module = import_module("gradwire.integrations.ray")
    monkeypatch.setattr(module, "train", train)
    return module


@pytest.fixture
def attached(ray: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's models are attached to: they are handles."""
    monkeypatch.setattr(ray, "attach_whole", lambda handle, *_, **__: handle)


Resume = Callable[[int, gw.Handle, Path], object]
"""A rank's resume, by an adapter, from what its host sees of the checkpoint in a folder."""


def by_accelerate(rank: int, handle: gw.Handle, folder: Path) -> None:
    """Which has loaded what this rank has saved; another rank's file may have nothing of rank 0's."""
    own = pytest.importorskip("gradwire.integrations.accelerate").CheckpointedHandle(handle)
    own.load_state_dict(torch.load(folder / FILE, weights_only=True) if (folder / FILE).exists() else {})


def by_huggingface(rank: int, handle: gw.Handle, folder: Path) -> None:
    huggingface = pytest.importorskip("gradwire.integrations.huggingface")
    trainer = SimpleNamespace(
        train=lambda *_: None, model_wrapped=rank, accelerator=SimpleNamespace(scaler=None),
        args=SimpleNamespace(output_dir=""), _save_checkpoint=None, _get_output_dir=None,
    )  # fmt: skip
    callback = huggingface.CompressionCallback(trainer)
    callback.handle, callback._model = handle, rank
    trainer.train(str(folder))
    callback.on_train_begin(trainer.args, SimpleNamespace(is_world_process_zero=rank == 0), None)


def by_ray(rank: int, handle: gw.Handle, folder: Path) -> None:
    RANK.rank = rank
    checkpoint = SimpleNamespace(path=str(folder), as_directory=lambda: nullcontext(folder))
    import_module("gradwire.integrations.ray").compress(handle, checkpoint=checkpoint)


@contextmanager
def resumed(by: Resume, folder: Path, change: Callable[[int, Path], None]) -> Iterator[tuple[list[Any], harness.Job]]:
    """Has two ranks save, each to a folder of its own, then `change` what was saved, then resume. Gives the result or
    the error of each rank, and the job."""
    with harness.job(plan_of(SLOTS, gw.TopK(0.1), gw.Residual(), gw.AllGather()), SLOTS, 2) as running:
        handles = [gw.Handle(runtime, NullFrontEnd()) for runtime in running.runtimes]
        running.step(draw(SLOTS, 2, 0))
        states = raising(together(2, lambda rank: handles[rank].state_dict(all_ranks=True)))
        for rank, state in enumerate(states):
            save(state, folder / str(rank) / FILE)
            change(rank, folder / str(rank) / FILE)
        running.saved = running.state("residual")
        running.step(draw(SLOTS, 2, 1))
        running.kept = running.state("residual")
        yield together(2, lambda rank: by(rank, handles[rank], folder / str(rank))), running


def check_residual(running: harness.Job, expected: list[list[Tensor]]) -> None:
    torch.testing.assert_close(running.state("residual"), expected, rtol=0, atol=0)


ADAPTERS = {"accelerate": by_accelerate, "huggingface": by_huggingface, "ray": by_ray}


@pytest.mark.parametrize("by", ADAPTERS.values(), ids=ADAPTERS)
def test_all_ranks_get_what_rank_0_has_whatever_their_own_hosts_see(by: Resume, tmp_path: Path, attached: None):
    """On hosts without a file system that they share."""
    for change in (lambda rank, file: None, lambda rank, file: file.unlink() if rank else None):
        with resumed(by, tmp_path, change) as (results, running):
            raising(results)
            check_residual(running, running.saved)


@pytest.mark.parametrize("by", [by_huggingface, by_ray])
def test_a_file_that_cannot_be_read_is_named_on_all_ranks(by: Resume, tmp_path: Path, attached: None):
    with resumed(by, tmp_path, lambda rank, file: file.write_bytes(b"PK no zip")) as (errors, running):
        for error in errors:
            assert isinstance(error, ValueError)
            assert f"{tmp_path / '0'}" in str(error)
            assert "cannot be read (" in str(error)
            assert "\n" not in str(error)
        check_residual(running, running.kept)


@pytest.mark.parametrize("by", [by_huggingface, by_ray])
def test_training_goes_on_with_a_warning_where_rank_0_sees_no_file_of_gradwires(
    by: Resume, tmp_path: Path, attached: None, caplog: pytest.LogCaptureFixture
):
    """Where only one of two hosts sees the file, none waits for the other."""
    caplog.set_level(WARNING)
    with resumed(by, tmp_path, lambda rank, file: None if rank else file.unlink()) as (results, running):
        raising(results)
        check_residual(running, running.kept)
    assert f"{tmp_path / '0'} has no {FILE}; training goes on without that checkpoint's memories" in caplog.text
    assert caplog.text.count("training goes on") == 1, "rank 0 alone says so"


@contextmanager
def without_package(package: str, stands_in: object, adapter: str) -> Iterator[Any]:
    """An adapter of a package that is not among what development needs, imported with something in its place."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, package, stands_in)
        patched.delitem(sys.modules, adapter, raising=False)
        try:
            yield import_module(adapter)
        finally:
            sys.modules.pop(adapter, None)


def test_methods_of_deepspeeds_engine_still_say_what_they_take():
    """As transformers asks before it leaves frozen parameters out."""

    class Engine:
        def save_checkpoint(
            self, save_dir: str, tag: Any = None, client_state: Any = None, frozen: bool = False
        ) -> Any:
            return save_dir, client_state, frozen

        def load_checkpoint(self, load_dir: str, load_module_only: bool = False) -> Any:
            return load_dir, {"gradwire": 5}

    says = SimpleNamespace(__version__="0.1", DeepSpeedEngine=Engine)
    engine, loaded = Engine(), []
    own = {name: signature(getattr(engine, name)) for name in ("save_checkpoint", "load_checkpoint")}
    with without_package("deepspeed", says, "gradwire.integrations.deepspeed_engine") as adapter:
        training = object.__new__(adapter.TrainingEngine)
        training._engine, training._replacements = engine, framework.Replacements()
        training.save_with("gradwire", lambda: 5, lambda found: None, loaded.append)
    assert {name: signature(getattr(engine, name)) for name in own} == own
    assert engine.save_checkpoint("here", frozen=True) == ("here", {"gradwire": 5}, True)
    assert engine.load_checkpoint("here") == ("here", {})
    assert loaded == [5]
    training.restore()
    assert engine.save_checkpoint("here") == ("here", None, False)


@pytest.mark.parametrize("given", [{"elastic": True}, {"scaler": "one"}, {"transport": "one"}])
def test_options_that_torchft_leaves_unused_are_refused_in_one_line(given: dict[str, Any]):
    model = nn.Linear(2, 2)
    torchft = SimpleNamespace(Optimizer=object)
    with (
        without_package("torchft", torchft, "gradwire.integrations.torchft") as adapter,
        pytest.raises(ValueError, match="= does not go with torchft's Optimizer; leave it out") as error,
    ):
        adapter.Optimizer(None, torch.optim.SGD(model.parameters()), model, "topk:0.1", **given)
    assert str(error.value).startswith(*given)


@pytest.mark.filterwarnings("ignore")
def test_every_checkpoint_of_the_trainers_has_gradwires_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """That of a search lies elsewhere, and one at SIGTERM is spoken of to no callback."""
    transformers = pytest.importorskip("transformers")
    adapter = import_module("gradwire.integrations.huggingface")
    jit = import_module("transformers.trainer_jit_checkpoint")
    monkeypatch.setattr(adapter, "attach_whole", lambda *_: gw.Handle(None, NullFrontEnd()))
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, save_steps=1, use_cpu=True, report_to=[], disable_tqdm=True
    )
    examples = [{"inputs": torch.ones(20), "labels": torch.tensor(1)}] * 16
    trainer = transformers.Trainer(trainers.Net(0), arguments, train_dataset=examples)
    trainer.add_callback(adapter.CompressionCallback(trainer, "topk"))
    trainer.train()
    # as a trial of a search goes on, and where SIGTERM has come
    trainer.hp_search_backend = import_module("transformers.trainer_utils").HPSearchBackend.OPTUNA
    trainer._trial, trainer.control.should_save = SimpleNamespace(number=3), True
    trainer._maybe_log_save_evaluate(torch.zeros(()), None, trainer.model, trainer._trial, 0, None, 0.0)
    trainer.state.global_step = 7
    jit.CheckpointManager(trainer).execute_jit_checkpoint()
    kept = {file.parent.relative_to(tmp_path).as_posix() for file in tmp_path.rglob(FILE)}
    assert kept == {"checkpoint-1", "checkpoint-2", "run-3/checkpoint-2", "checkpoint-7"}


def test_a_model_that_the_trainer_has_not_wrapped_is_refused(monkeypatch: pytest.MonkeyPatch):
    """evaluate() before train() has each rank train by itself, with transformers 5.23 alone as well."""
    pytest.importorskip("transformers")
    adapter = import_module("gradwire.integrations.huggingface")
    monkeypatch.setattr(framework, "attach", lambda model, *_, **__: model)
    model, nothing = nn.Linear(2, 2), Mock()
    compiled, ddp = torch.compile(model, backend="eager"), nn.Sequential(model)
    cases = [(2, model, True), (2, compiled, True), (2, ddp, False), (1, model, False)]
    # FSDP is in the model itself
    for fsdp, (ranks, wrapped, refused) in [*((False, case) for case in cases), (True, (2, model, False))]:
        trainer: Any = Mock(model=model, model_wrapped=wrapped, is_fsdp_enabled=fsdp)
        trainer.accelerator.num_processes = ranks
        callback = adapter.CompressionCallback(trainer, "topk")
        with pytest.raises(ValueError, match=r"before train\(\).*eval_on_start=True") if refused else nullcontext():
            callback.on_train_begin(nothing, nothing, nothing)


def test_a_checkpoint_of_lightnings_without_gradwires_state_is_spoken_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    lightning = pytest.importorskip("gradwire.integrations.lightning")
    monkeypatch.setattr(lightning, "attach_whole", lambda *_, **__: gw.Handle(None, NullFrontEnd()))
    strategy, says = SimpleNamespace(model=torch.nn.Linear(2, 2)), "has nothing of Gradwire; training goes on without"
    callback = lightning.GradientCompression("topk:0.1")
    # by rank 0 alone, and not of one from before the first step, as the finder of learning rates keeps
    for path, step, first in [(None, 5, True), ("last", 0, True), ("last", 5, False), ("last", 5, True)]:
        trainer = SimpleNamespace(
            strategy=strategy, precision_plugin=None, ckpt_path=path, global_step=step, is_global_zero=first
        )
        with caplog.at_level(WARNING):
            callback.on_train_start(trainer, None)
        assert (f"last {says}" in caplog.text) == (path is not None and step > 0 and first)


@pytest.mark.parametrize(
    ("error", "interrupted", "kept"),
    [(RuntimeError, False, True), (ValueError, True, True), (ValueError, False, False)],
)
def test_a_checkpoint_of_lightnings_is_saved_though_gradwires_state_cannot(
    error: type[Exception], interrupted: bool, kept: bool, caplog: pytest.LogCaptureFixture
):
    callback = pytest.importorskip("gradwire.integrations.lightning").GradientCompression("topk:0.1")
    callback.setup(SimpleNamespace(interrupted=interrupted), None, "fit")
    callback.handle = Mock(detached=False, **{"state_dict.side_effect": error("rank 1 did not come")})
    if kept:
        assert callback.state_dict() == {}
        assert "has nothing of Gradwire, whose memories begin anew from it: rank 1 did not come" in caplog.text
    else:
        with pytest.raises(error, match="rank 1 did not come"):
            callback.state_dict()


@pytest.mark.filterwarnings("ignore")
def test_a_fit_of_lightnings_begins_with_the_memories_of_its_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Not of one that `test` has read, nor of the fit before; what is restored in the middle counts at once."""
    lightning = pytest.importorskip("lightning")
    adapter = import_module("gradwire.integrations.lightning")
    made: list[Mock] = []

    def attach_whole(*_: Any) -> Mock:
        made.append(Mock(detached=False, **{"state_dict.return_value": {"of": len(made)}}))
        return made[-1]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.layer(batch).sum()

        def test_step(self, batch: Tensor, index: int) -> None: ...

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Restores(lightning.Callback):
        """As the finder of learning rates does."""

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "restored")
            trainer._checkpoint_connector.restore(tmp_path / "restored")

        on_train_start = on_fit_start

    def trainer(epochs: int, *others: Any) -> Any:
        return lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, callbacks=[compress, *others],
        )  # fmt: skip

    monkeypatch.setattr(adapter, "attach_whole", attach_whole)
    compress, data, kept = adapter.GradientCompression("topk"), torch.utils.data.DataLoader(torch.ones(2, 2)), "kept"
    first = trainer(1)
    first.fit(Module(), data)
    first.save_checkpoint(tmp_path / kept)
    first.test(Module(), data, ckpt_path=tmp_path / kept, verbose=False)
    trainer(1, Restores()).fit(Module(), data)
    trainer(2).fit(Module(), data, ckpt_path=tmp_path / kept)
    loaded = [[call.args for call in handle.load_state_dict.call_args_list] for handle in made]
    assert loaded == [[], [({"of": 1},)], [({"of": 0},)]]
    # each ends the job before, which has the options' controller
    assert [handle.detach.call_count for handle in made] == [1, 1, 0]


class Outside:
    """What Lightning takes for an optimizer, though it is none of torch's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.defaults, self.state = inner, inner.defaults, inner.state
        self.param_groups, self.zero_grad = inner.param_groups, inner.zero_grad
        self.state_dict, self.load_state_dict = inner.state_dict, inner.load_state_dict

    def step(self, closure: Any) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.inner.step()
        return loss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "replace", "skips"),
    [
        (lambda sgd: sgd, lambda trainer: None, 1),
        (lambda sgd: sgd, lambda trainer: trainer.strategy.setup_optimizers(trainer), 1),
        (lambda sgd: sgd, lambda trainer: setattr(trainer, "optimizers", [trainer.lightning_module.sgd()]), 1),
        (Outside, lambda trainer: None, 0),
    ],
    ids=["first", "set up anew", "replaced", "not torch's"],
)
def test_lightning_takes_back_the_steps_that_are_left_out_alone(
    make: Callable[[Any], Any], replace: Callable[[Any], None], skips: int, monkeypatch: pytest.MonkeyPatch
):
    lightning = pytest.importorskip("lightning")
    adapter = import_module("gradwire.integrations.lightning")
    handle = Mock()
    monkeypatch.setattr(adapter, "attach_whole", lambda *_: handle)

    class Module(lightning.LightningModule):
        require_backward_grad_sync = True

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.layer(batch).sum()

        def sgd(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def configure_optimizers(self) -> Any:
            return make(self.sgd())

        def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Any) -> None:
            if index == 3:
                closure()
            else:
                optimizer.step(closure=closure)

    class Replaces(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Tensor, index: int) -> None:
            if index == 1:
                replace(trainer)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
        callbacks=[adapter.GradientCompression("topk"), Replaces()],
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(5, 2)))
    assert handle.skip.call_count == skips


@pytest.fixture
def sharded(ray: ModuleType) -> Iterator[nn.Module]:
    """A model whose shards lie on two ranks of each replica, of which this process pretends to be the first."""
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


def test_accelerate_keeps_a_place_for_what_was_detached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    accelerate = pytest.importorskip("accelerate")
    compress = pytest.importorskip("gradwire.integrations.accelerate").compress
    monkeypatch.setattr(framework, "attach", lambda *_, **__: gw.Handle(None, NullFrontEnd()))
    accelerator: Any = accelerate.Accelerator(cpu=True)
    model, other = nn.Linear(2, 2), nn.Linear(1, 1)
    compress(accelerator, model, gw.TopK(0.5)).detach()
    accelerator.register_for_checkpointing(other)
    # one that was detached since is loaded, and the next one comes in its place
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    handle = compress(accelerator, model, gw.TopK(0.5))
    accelerator.load_state(str(tmp_path))
    first, second = accelerator._custom_objects
    assert (first.handle, second) == (handle, other)
    # beside one that is attached, another has a place of its own
    compress(accelerator, nn.Linear(2, 2), gw.TopK(0.5))
    assert len(accelerator._custom_objects) == 3
    # an Accelerate that keeps them elsewhere is refused before anything is attached
    monkeypatch.setattr(framework, "attach", lambda *_, **__: pytest.fail("attached"))
    with pytest.raises(ValueError, match=r"accelerate 1.* has no '_custom_objects'; install version 1.15.0"):
        compress(SimpleNamespace(scaler=None), model, gw.TopK(0.5))


@pytest.mark.parametrize("name", ["lightning", "huggingface"])
@pytest.mark.parametrize("given", [{}, {"scaler": "given"}])
def test_the_scaler_is_that_of_the_present_training(name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Where one in float32 comes first, and one in float16 after it."""
    pytest.importorskip({"huggingface": "transformers"}.get(name, name))
    trainer: Any = import_module(f"gradwire.integrations.{name}")
    scalers: list[Any] = []
    monkeypatch.setattr(framework, "attach", lambda *_, scaler, **__: scalers.append(scaler))
    holder = Mock(optimizers=[], ckpt_path=None)
    if name == "lightning":
        begin = partial(trainer.GradientCompression("topk", **given).on_train_start, holder, None)
    else:
        begin = partial(trainer.CompressionCallback(holder, "topk", **given).on_train_begin, None, Mock(), None)
    for scaler in (None, "new"):
        holder.scaler = holder.accelerator.scaler = holder.precision_plugin.scaler = scaler
        holder.model_wrapped = holder.strategy.model = nn.Linear(2, 2)
        begin()
    assert scalers == ([given["scaler"]] * 2 if given else [None, "new"])


def test_whole_models_are_attached_to(sharded: nn.Module, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(framework, "attach", lambda model, *arguments, **options: model)
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))
    for whole in (nn.Linear(3, 4), fully_shard(nn.Linear(3, 4), mesh=mesh)):
        assert framework.attach_whole(whole, None, {}) is whole
