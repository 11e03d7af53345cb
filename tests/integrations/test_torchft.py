"""Under torchft, with its lighthouse and a manager in each process: `make test-torchft`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.processes.test_elastic import Rank
from tests.support.ranks import held_port

pytest.importorskip("torchft", reason="`make test-torchft` installs it")

ROOT = Path(__file__).parents[2]
DEFAULT = {
    "steps": 20, "at_least": 2, "pause_s": 0.02, "vetoes": None, "summed": 0, "local": 0, "ranks": 1,
    "spoils": None, "saves": None, "resumes": False, "heals_late": False,
}  # fmt: skip


class Replica(Rank):
    module = "tests.processes.with_torchft"

    def begun(self) -> dict[int, dict[str, Any]]:
        """What it had when it last began each step."""
        return {words["begins"]: words for words in list(self.said) if "begins" in words}


@contextmanager
def lighthouse(min_replicas: int = 2) -> Iterator[str]:
    """Its address."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        "127.0.0.1:0", min_replicas=min_replicas, join_timeout_ms=2000, quorum_tick_ms=20, heartbeat_timeout_ms=2000
    )
    try:
        yield server.address()
    finally:
        server.shutdown()


@contextmanager
def replicas(count: int, **told: Any) -> Iterator[list[Replica]]:
    """Their ranks, one replica's after another's. `replica_0` and so on are for the last rank of one."""
    own = [told.pop(f"replica_{number}", {}) for number in range(count)]
    ranks = told.get("ranks", 1)
    with lighthouse() as address, ExitStack() as held:
        ports = [held.enter_context(held_port()) for _ in range(count)]
        everyone = [
            Replica(
                ports[number], number=number, rank=rank, lighthouse=address,
                **DEFAULT | told | (own[number] if rank == ranks - 1 else {}),
            )
            for number in range(count)
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            for each in everyone:
                each.wait_for(lambda each=each: each.said)  # all have loaded torch
            yield everyone
        finally:
            for each in everyone:
                each.end()


def train(everyone: list[Replica]) -> None:
    for each in everyone:
        each.let_in()
    for each in everyone:
        each.wait_for(lambda each=each: each.all("ended"))


def kill(replica: list[Replica]) -> None:
    """The rank at whose store the replicas have met; those that hold its model with it end by themselves."""
    first, *others = replica
    first.process.kill()
    for each in others:
        each.process.wait(timeout=60)


@pytest.fixture(scope="module", params=[1, 2], ids=["whole", "sharded"])
def undisturbed(request: pytest.FixtureRequest) -> list[Replica]:
    """Two replicas of so many ranks."""
    with replicas(2, summed=4, ranks=request.param) as everyone:
        train(everyone)
    return everyone


def by_shard(ranks: list[Replica]) -> list[tuple[Replica, Replica]]:
    """Of two replicas, those that hold the same."""
    half = len(ranks) // 2
    return list(zip(ranks[:half], ranks[half:], strict=True))


def test_replicas_are_alike_and_what_is_sent_adds_up(undisturbed: list[Replica]):
    for one, other in by_shard(undisturbed):
        assert {words["ranks"] for words in one.steps().values()} == {2}
        for step, words in one.steps().items():
            assert words["model"] == other.steps()[step]["model"]
            assert words["kept"] != other.steps()[step]["kept"]
        sums = ([words for words in each.said if "sums" in words] for each in (one, other))
        for mine, others in zip(*sums, strict=True):
            assert mine["mean"] == others["mean"]
            sent = torch.tensor(mine["sent"]) + torch.tensor(others["sent"])
            torch.testing.assert_close(sent, torch.tensor(mine["mean"]), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("who", [(0, 1), (0,), (1,)], ids=["both", "one", "the other"])
def test_a_step_that_is_voted_down_leaves_everything_as_it_was(who: tuple[int, ...], undisturbed: list[Replica]):
    """One rank is enough. Where one of the replicas takes it, the other one heals, and so has its part of it."""
    ranks = len(undisturbed) // 2
    with replicas(2, ranks=ranks, **{f"replica_{number}": {"vetoes": 7} for number in who}) as everyone:
        train(everyone)
    for each in (everyone[number * ranks + rank] for number in who for rank in range(ranks)):
        again = [words for words in each.said if words.get("begins") == 7]
        (refused,) = [words for words in each.said if words.get("refused") == 7]
        assert again[0]["model"] == refused["model"]
        if len(who) == 2:
            assert again[0] == again[1]
    for each, before in zip(everyone, undisturbed, strict=True):
        assert each.all("ended") == before.all("ended")


def test_what_is_not_finite_in_one_shard_counts_for_nobody(undisturbed: list[Replica]):
    with replicas(2, ranks=len(undisturbed) // 2, replica_0={"spoils": 7}) as everyone:
        train(everyone)
    for each, before in zip(everyone, undisturbed, strict=True):
        (refused,) = [words for words in each.said if words.get("refused") == 7]
        assert refused["model"] == before.steps()[7]["model"]
        assert each.all("ended") == before.all("ended")


@pytest.mark.parametrize(("ranks", "local"), [(1, 0), (2, 0), (1, 3), (2, 3)])
def test_replicas_go_on_from_checkpoints_as_if_nothing_had_been(ranks: int, local: int, tmp_path: Path):
    told = {"ranks": ranks, "local": local, "checkpoints": str(tmp_path)}
    with replicas(2, steps=8, saves=4, **told) as before:
        train(before)
    with replicas(2, steps=8, resumes=True, **told) as after:
        train(after)
    for resumed, undisturbed in zip(after, before, strict=True):
        assert not resumed.all("refused")
        assert min(resumed.steps()) == 5
        assert resumed.all("ended") == undisturbed.all("ended")


def manager_like(**differs: Any) -> Any:
    from torchft import ProcessGroupGloo
    from torchft.manager import WorldSizeMode

    usual = {
        "_use_async_quorum": False, "_group_rank": 0, "_group_world_size": 1, "current_step": lambda: 0,
        "_replica_world_size_mode": WorldSizeMode.DYNAMIC, "_pg": ProcessGroupGloo(),
    }  # fmt: skip
    return SimpleNamespace(**usual | differs)


def test_states_of_another_step_or_of_something_else_are_refused():
    from gradwire.integrations.torchft import FaultTolerantLocalSteps, Optimizer

    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters())
    state = {"step": 40, "shard": "0 of 1", "memories": None, "anchors": {}, "outer": {}, "inner steps": 0}
    with pytest.raises(ValueError, match="lacks 'anchors'; pass what exchange_state"):
        FaultTolerantLocalSteps(manager_like(), inner, model, state={"step": 0, "shard": "0 of 1", "memories": None})
    with pytest.raises(ValueError, match="that of shard 1 of 2; this rank has 0 of 1"):
        Optimizer(manager_like(), inner, model, "topk:0.1", state=state | {"shard": "1 of 2"})
    with pytest.raises(ValueError, match="lacks 'memories'; pass what exchange_state"):
        Optimizer(manager_like(), inner, model, "topk:0.1", state=inner.state_dict())
    says = r"saved after step 40, and .* goes on from step 0; call manager\.load_state_dict\(\)"
    with pytest.raises(ValueError, match=says):
        Optimizer(manager_like(), inner, model, "topk:0.1", state=state)
    with pytest.raises(ValueError, match=says):
        FaultTolerantLocalSteps(manager_like(), inner, model, state=state)


def test_managers_that_do_not_fit_are_refused():
    from torchft.manager import WorldSizeMode
    from torchft.process_group import ErrorSwallowingProcessGroupWrapper, ProcessGroupBabyGloo, ProcessGroupGloo

    from gradwire.integrations.torchft import Optimizer

    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters())
    takes = r"; pass Manager\(pg=ProcessGroupGloo\(\)\), or ProcessGroupNCCL\(\)"
    swallowing = ErrorSwallowingProcessGroupWrapper(ProcessGroupGloo())
    for manager, says in [
        (
            manager_like(_replica_world_size_mode=WorldSizeMode.FIXED_WITH_SPARES),
            r"leave out Manager\(world_size_mode=",
        ),
        (manager_like(_pg=ProcessGroupBabyGloo()), "not ProcessGroupBabyGloo" + takes),
        (manager_like(_pg=swallowing), "not ErrorSwallowingProcessGroupWrapper" + takes),
        (manager_like(_use_async_quorum=True), r"pass Manager\(use_async_quorum=False\)"),
        (manager_like(_group_world_size=2), r"a replica of 2 ranks .*; call fully_shard\(model\) first"),
    ]:
        with pytest.raises(ValueError, match=says):
            Optimizer(manager, inner, model, "topk:0.1")


@pytest.mark.usefixtures("one_rank")
def test_a_manager_of_other_ranks_than_torch_distributeds_is_refused():
    from torch.distributed.fsdp import fully_shard

    from gradwire.integrations.torchft import Optimizer

    model = torch.nn.Linear(2, 2)
    fully_shard(model)
    manager = manager_like(_group_rank=1, _group_world_size=2)
    says = r"rank 0 of 1 in torch.distributed, and rank 1 of 2 to the manager"
    with pytest.raises(ValueError, match=says):
        Optimizer(manager, torch.optim.SGD(model.parameters()), model, "topk:0.1")


@pytest.fixture
def manager() -> Iterator[Any]:
    """That of a replica that is the only one."""
    from torchft import Manager, ProcessGroupGloo

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with lighthouse(min_replicas=1) as address:
        manager = Manager(
            ProcessGroupGloo(), None, None, min_replica_size=1, use_async_quorum=False, rank=0, world_size=1,
            store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=address, hostname="127.0.0.1",
        )  # fmt: skip
        yield manager
        manager.shutdown()
        manager._checkpoint_transport._server.server_close()  # which shutdown() leaves open


@pytest.fixture
def alone(manager: Any) -> tuple[Any, torch.nn.Linear]:
    """Its optimizer and its model."""
    from gradwire.integrations.torchft import Optimizer

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    return Optimizer(manager, torch.optim.SGD(model.parameters(), lr=0.1), model, "fp32"), model


def test_micro_batches_add_up_and_two_steps_in_one_are_refused(alone: tuple[Any, torch.nn.Linear]):
    (optimizer, model), batches = alone, torch.randn(2, 5, 4)
    optimizer.zero_grad()
    with optimizer.no_sync():
        model(batches[0]).sum().backward()
    model(batches[1]).sum().backward()
    torch.testing.assert_close(model.weight.grad, batches.sum((0, 1)).expand(3, 4))
    optimizer.step()
    optimizer.zero_grad()  # and the user's loop takes no step
    model(batches[0]).sum().backward()
    optimizer.zero_grad()
    model(batches[0]).sum().backward()
    with pytest.raises(RuntimeError, match=r"two backward passes in one step; .* optimizer\.no_sync\(\)"):
        model(batches[0]).sum().backward()


@pytest.mark.parametrize("backward", [True, False])
def test_a_step_without_means_is_refused(backward: bool, alone: tuple[Any, torch.nn.Linear]):
    """The second in a row, and one all of whose backward passes only accumulate."""
    optimizer, model = alone
    optimizer.zero_grad()
    if backward:
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    else:
        with optimizer.no_sync():
            model(torch.randn(5, 4)).sum().backward()
    with pytest.raises(RuntimeError, match=r"step\(\) without means: call zero_grad\(\) first"):
        optimizer.step()


@pytest.mark.parametrize(
    ("first", "then", "unused", "says"),
    [
        ({0, 1}, {0, 1, 2}, False, r"'2\.weight' was thawed after Optimizer was made; begin anew"),
        ({0, 1}, {2}, True, r"'2\.weight' was thawed after Optimizer was made; begin anew"),
        (
            {0, 1, 2},
            {0, 2},
            False,
            r"'1\.weight' was frozen after Optimizer was made; pass find_unused",
        ),
        ({0, 1, 2}, {0, 2}, True, ""),
    ],
)
def test_what_is_frozen_or_thawed_after_the_optimizer_was_made_is_refused(
    first: set[int], then: set[int], unused: bool, says: str, manager: Any
):
    from gradwire.integrations.torchft import Optimizer

    def train(layers: set[int]) -> None:
        for index, layer in enumerate(model):
            layer.requires_grad_(index in layers)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    train(first)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = Optimizer(manager, inner, model, "topk:0.5", find_unused_parameters=unused)
    step()
    train(then)
    with pytest.raises(RuntimeError, match=says) if says else nullcontext():
        step()


def test_what_is_thawed_after_local_steps_began_is_refused(manager: Any):
    from gradwire.integrations.torchft import FaultTolerantLocalSteps

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
    model[1].requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = FaultTolerantLocalSteps(manager, inner, model, "topk:0.5", inner_steps=2)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    model[1].requires_grad_(True)
    before = model[1].weight.clone()
    optimizer.zero_grad()
    model(torch.randn(5, 4)).sum().backward()
    with pytest.raises(ValueError, match=r"'1\.weight' was thawed after FaultTolerantLocalSteps was made"):
        optimizer.step()
    assert torch.equal(model[1].weight, before)


def test_the_example_compresses_and_is_short():
    script = ROOT / "examples" / "with_torchft.py"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", str(script)]
    with lighthouse() as address:
        environment = os.environ | {"TORCHFT_LIGHTHOUSE": address, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        both = [
            subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for each in both:
            assert "times fewer bytes" in each.communicate(timeout=200)[0]
            assert each.returncode == 0
    assert len(script.read_text().splitlines()) <= 35


@pytest.mark.parametrize("ranks", [1, 2], ids=["whole", "sharded"])
def test_one_is_killed_the_others_go_on_and_a_newcomer_heals(ranks: int):
    with replicas(4, steps=60, ranks=ranks, replica_3={"heals_late": ranks > 1}) as started:
        killed, everyone, newcomer = started[:ranks], started[ranks:-ranks], started[-ranks:]
        for each in [*killed, *everyone]:
            each.let_in()
        for each in everyone:
            each.wait_for(lambda each=each: max(each.steps(), default=0) >= 5)
        lost_at = max(each.said[-1].get("step", 0) for each in everyone)
        kill(killed)
        for each in everyone:
            each.wait_for(lambda each=each: max(each.steps()) > lost_at + 5)
        for each in newcomer:
            each.let_in()
        for each in [*everyone, *newcomer]:
            each.wait_for(lambda each=each: each.all("ended"))

    for each in newcomer:
        begins = next(words for words in each.said if words.get("begins"))  # 0 is before it has healed whole
        assert begins["new"]
        assert begins["model"] == everyone[newcomer.index(each)].begun()[begins["begins"]]["model"]
        assert begins["begins"] + 1 in each.steps()
    for each in everyone:
        assert [ranks for ranks, _ in groupby(words["ranks"] for words in each.steps().values())][-3:] == [3, 2, 3]
        for before, after in pairwise([words for words in each.said if "kept" in words]):
            if "begins" in after:  # the others may have counted what was refused here, or gone on without it
                assert after["kept"] == before["kept"] or ("refused" in before and not after["new"])
    for shard in range(ranks):
        alike = [*everyone, *newcomer][shard::ranks]
        for step in range(1, 61):
            assert len({each.steps()[step]["model"] for each in alike if step in each.steps()}) == 1
        assert len({each.all("ended")[0]["model"] for each in alike}) == 1


@pytest.mark.parametrize(("ranks", "fault"), [(1, "vetoes"), (1, "spoils"), (2, "spoils")])
def test_local_steps_a_round_that_does_not_count_leaves_everything_as_it_was(ranks: int, fault: str):
    with replicas(2, steps=8, local=3, ranks=ranks) as undisturbed:
        train(undisturbed)
    own = {fault: 5}
    with replicas(2, steps=8, local=3, ranks=ranks, replica_0=own, replica_1=own) as everyone:
        train(everyone)
    for each, before in zip(everyone, undisturbed, strict=True):
        (refused,) = [words for words in each.said if "refused" in words]
        assert refused["refused"] == 5
        assert refused["model"] == each.steps()[5]["model"]
        assert {step: words["model"] for step, words in each.steps().items() if step <= 5} == {
            step: words["model"] for step, words in before.steps().items() if step <= 5
        }
    for one, other in by_shard(everyone):
        assert {step: words["model"] for step, words in one.steps().items()} == {
            step: words["model"] for step, words in other.steps().items()
        }
        assert len({words["model"] for words in one.steps().values()}) == 7


@pytest.mark.parametrize("ranks", [1, 2], ids=["whole", "sharded"])
def test_local_steps_go_on_without_one_and_with_a_newcomer(ranks: int):
    with replicas(4, steps=30, local=3, ranks=ranks) as started:
        killed, everyone, newcomer = started[:ranks], started[ranks:-ranks], started[-ranks:]
        for each in [*killed, *everyone]:
            each.let_in()
        for each in everyone:
            each.wait_for(lambda each=each: max(each.steps(), default=0) >= 4)
        kill(killed)
        lost_at = max(max(each.steps()) for each in everyone)
        for each in everyone:
            each.wait_for(lambda each=each: max(each.steps()) > lost_at + 3)
        for each in newcomer:
            each.let_in()
        for each in [*everyone, *newcomer]:
            each.wait_for(lambda each=each: each.all("ended"))

    for shard in range(ranks):
        alike = [*everyone, *newcomer][shard::ranks]
        (joined,) = newcomer[shard].begun().values()
        assert joined["model"] == alike[0].steps()[joined["begins"]]["model"]
        assert joined["begins"] > lost_at
        for step in range(2, 31):
            assert len({each.steps()[step]["model"] for each in alike if step in each.steps()}) == 1
