"""States in checkpoints of torch.distributed.checkpoint, in one process: what is saved, and what is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import gradwire as gw
from gradwire.checkpoint import STEP
from gradwire.frontends.checkpoints.distributed_checkpoint import DistributedState, replicated_specs, saved_in
from gradwire.frontends.null_job import NullFrontEnd
from gradwire.runtime.runtime import Runtime
from tests.support.harness import SMALL, draw, job, slots_of

SLOTS = slots_of(SMALL)
PLAN = gw.plans.uniform(SLOTS, gw.TopK(0.1))


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def state_of(runtime: Runtime, path: Path | None = None) -> DistributedState:
    assert dist.group.WORLD is not None
    placed = replicated_specs(dist.group.WORLD, {slot.name: torch.zeros(slot.shape) for slot in SLOTS})
    return DistributedState(runtime, placed, saved_in(path, None, ""))


def check_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_what_was_loaded_can_be_saved_by_the_same_object(tmp_path: Path):
    with job(PLAN, SLOTS, 1) as running, job(PLAN, SLOTS, 1) as later, job(PLAN, SLOTS, 1) as last:
        running.step(draw(SLOTS, 1, 0))
        dcp.save({"gradwire": state_of(running.runtimes[0])}, checkpoint_id=tmp_path / "a")
        app = {"gradwire": state_of(later.runtimes[0], tmp_path / "a")}
        dcp.load(app, checkpoint_id=tmp_path / "a")
        later.step(draw(SLOTS, 1, 1))
        dcp.save(app, checkpoint_id=tmp_path / "b")
        dcp.load({"gradwire": state_of(last.runtimes[0], tmp_path / "b")}, checkpoint_id=tmp_path / "b")
        check_same(last.states()[0], later.states()[0])
        assert last.states()[0][STEP] == 2
        with pytest.raises(ValueError, match=r"loaded already; make another handle.stateful\(path\)"):
            dcp.load(app, checkpoint_id=tmp_path / "b")


def local_steps() -> tuple[nn.Module, gw.LocalSteps]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, gw.LocalSteps(sgd, model, gw.TopK(0.5), inner_steps=2)


def train(model: nn.Module, optimizer: gw.LocalSteps, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()


def test_local_steps_that_were_loaded_can_be_saved_by_the_same_object(tmp_path: Path):
    (model, optimizer), (other, resumed), (third, last) = (local_steps() for _ in range(3))
    train(model, optimizer, 3)
    dcp.save({"local_steps": optimizer.stateful()}, checkpoint_id=tmp_path / "a")
    app = {"local_steps": resumed.stateful(tmp_path / "a")}
    dcp.load(app, checkpoint_id=tmp_path / "a")
    train(other, resumed, 2)
    dcp.save(app, checkpoint_id=tmp_path / "b")
    dcp.load({"local_steps": last.stateful(tmp_path / "b")}, checkpoint_id=tmp_path / "b")
    check_same(third.state_dict(), other.state_dict())
    assert last.state_dict()["local_steps"]["step"] == 5
    for each in (optimizer, resumed, last):
        each.handle.detach()


def test_what_was_saved_before_it_was_loaded_is_named(tmp_path: Path):
    with job(PLAN, SLOTS, 1) as running:
        runtime = running.runtimes[0]
        dcp.save({"gradwire": state_of(runtime)}, checkpoint_id=tmp_path / "a")
        dcp.save({"gradwire": state_of(runtime, tmp_path / "a")}, checkpoint_id=tmp_path / "b")
        said = r"stateful\(path\) was saved before it was loaded, and has no state; save stateful\(\)"
        with pytest.raises(ValueError, match=said):
            dcp.load({"gradwire": state_of(runtime, tmp_path / "b")}, checkpoint_id=tmp_path / "b")


def test_a_state_of_which_nothing_is_known_is_not_loaded(tmp_path: Path):
    with job(PLAN, SLOTS, 1) as running:
        state = state_of(running.runtimes[0])
        dcp.save({"gradwire": state}, checkpoint_id=tmp_path)
        with pytest.raises(ValueError, match=r"use dcp.load\({...: handle.stateful\(path\)}\)"):
            dcp.load({"gradwire": state}, checkpoint_id=tmp_path)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_handle_whose_figures_fail_ends_its_job_all_the_same(leaves: bool, monkeypatch: pytest.MonkeyPatch):
    with job(PLAN, SLOTS, 1) as running:
        runtime, front_end, unhooked = running.runtimes[0], NullFrontEnd(), list[str]()
        handle = gw.Handle(runtime, front_end)
        monkeypatch.setattr(front_end, "unhook", lambda: unhooked.append("unhook"))
        monkeypatch.setattr(runtime, "stats", lambda: 1 // 0)
        if leaves:
            assert len(handle.leave()) == 1
        else:
            handle.detach()
        assert (unhooked, runtime.closed) == (["unhook"], True)
        handle.detach()
        assert (unhooked, handle.stats().steps) == (["unhook"], 0)


def test_states_in_lists_have_keys_with_numbers(tmp_path: Path):
    with job(PLAN, SLOTS, 1) as running:
        states = [state_of(running.runtimes[0]).state_dict() for _ in range(2)]
        dcp.save({"models": states}, checkpoint_id=tmp_path)
        with pytest.raises(ValueError, match=r"2 Gradwire states, 'models.0', 'models.1'; load stateful\(path, key='m"):
            saved_in(tmp_path, None, "")
        assert saved_in(tmp_path, "models.1", "").keys() == states[1].keys()
