"""A rank is killed in the middle of training, and another one comes: real processes over gloo."""

import json
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from tests.support.waiting import wait_until
from tests.support.warm import Forked

STEPS = 40
TOLD = {"steps": STEPS, "at_least": 3, "last_call_timeout": 4.0, "timeout_s": 60, "pause_s": 0.05}


class Rank:
    """A process that waits to be let in, and what it has said."""

    module = "tests.processes.elastic"

    def __init__(self, port: int, **told: Any) -> None:
        argv, pipe = ["-m", self.module, str(port), json.dumps(TOLD | told)], subprocess.PIPE
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.process = Forked(argv, [self.module], env=environment, stdin=pipe, stdout=pipe, text=True)
        self.said: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def let_in(self) -> None:
        self.wait_for(lambda: self.said)
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait_for(self, condition: Callable[[], object]) -> None:
        assert wait_until(lambda: condition() or self.process.poll() is not None, 100), self.said[-3:]
        assert condition(), self.said[-3:]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def all(self, word: str) -> list[Any]:
        return [words[word] for words in self.said if word in words]

    def resumed(self) -> list[dict[str, Any]]:
        return [words for words in self.said if "resumed" in words]

    def steps(self) -> dict[int, dict[str, Any]]:
        """What it said of each step when it last made it."""
        return {words["step"]: words for words in list(self.said) if "step" in words}


@contextmanager
def processes(count: int, last: dict[str, Any] | None = None, **told: Any) -> Iterator[list[Rank]]:
    """The `last` one is told something more. The store is this process's, which outlives them."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    ranks = [Rank(store.port, **told, **(last or {} if i == count - 1 else {})) for i in range(count)]
    try:
        for rank in ranks:
            rank.wait_for(lambda rank=rank: rank.said)  # all have loaded torch
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


@pytest.mark.parametrize("front_end", [pytest.param("ddp", marks=pytest.mark.long), "optimizer"])
def test_one_of_four_is_killed_and_a_newcomer_joins(front_end):
    chance = random.Random(front_end)
    with processes(5, front_end=front_end) as (*ranks, newcomer):
        for rank in ranks:
            rank.let_in()
        for rank in ranks:
            rank.wait_for(lambda rank=rank: 5 in rank.steps())
        time.sleep(chance.uniform(0, 0.2))
        ranks.pop(chance.randrange(4)).process.kill()
        for rank in ranks:
            rank.wait_for(lambda rank=rank: rank.resumed()[-1]["ranks"] == 3)
        newcomer.let_in()
        for rank in [*ranks, newcomer]:
            rank.wait_for(lambda rank=rank: rank.all("ended"))

    for rank in ranks:
        assert [count for count, _ in groupby(words["ranks"] for words in rank.resumed())] == [4, 3, 4]
        for words in rank.resumed()[1:]:  # what memories hold is what they held after the last step that counted
            before = rank.steps().get(words["resumed"])
            assert before is None or before["kept"] == words["kept"]
    assert newcomer.resumed()[0]["kept"] == ranks[0].resumed()[0]["kept"]  # nothing
    assert {rank.resumed()[-1]["resumed"] for rank in [*ranks, newcomer]} == {newcomer.resumed()[-1]["resumed"]}
    for step in range(1, STEPS + 1):
        assert len({rank.steps()[step]["model"] for rank in [*ranks, newcomer] if step in rank.steps()}) <= 1
    said = {step for rank in ranks for step in rank.steps()}
    assert len(said) >= STEPS - 1  # the script's own collective may fail at the end of a step that counts
    assert newcomer.resumed()[-1]["resumed"] + 1 in newcomer.steps()
    assert len({rank.all("ended")[0] for rank in [*ranks, newcomer]}) == 1


@pytest.mark.parametrize("front_end", [pytest.param("ddp", marks=pytest.mark.long), "optimizer"])
def test_a_newcomer_that_differs_ends_alone(front_end):
    told = {"front_end": front_end, "at_least": 2, "last_call_timeout": 2.0, "pause_s": 0.1}
    with processes(3, last={"seed": 1}, **told) as (*ranks, newcomer):
        for rank in ranks:
            rank.let_in()
        for rank in ranks:
            rank.wait_for(lambda rank=rank: 5 in rank.steps())
        newcomer.let_in()
        for rank in ranks:
            rank.wait_for(lambda rank=rank: rank.all("ended"))
        assert wait_until(lambda: newcomer.process.poll() is not None, 20)

    for rank in ranks:
        assert any("differ in seed: 0 on ranks 0, 1, 1 on rank 2" in said for said in rank.all("error"))
        assert {words["ranks"] for words in rank.resumed()} == {2}
    assert not newcomer.resumed()


@pytest.mark.long
def test_nobody_is_late_when_ranks_fail_in_the_middle_of_a_step():
    """gloo ends a group when what is under way in it has ended, and ranks wait for each other in a circle."""
    generations = 2
    told = {"front_end": "optimizer", "at_least": 2, "last_call_timeout": 2.0, "pause_s": 0.0, "steps": 40}
    with processes(4, faults=generations, **told) as ranks:
        for rank in ranks:
            rank.let_in()
        for rank in ranks:
            rank.wait_for(lambda rank=rank: rank.all("ended"))

    for rank in ranks:
        assert [words["ranks"] for words in rank.resumed()] == [4] * (generations + 1)
    assert len({rank.all("ended")[0] for rank in ranks}) == 1


@pytest.mark.parametrize(
    ("front_end", "rank", "meeting", "says"),
    [
        ("ddp", 0, 1, "rank 0 did not come to attach()"),
        pytest.param("optimizer", 1, 3, "rank 1 was lost", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_is_lost_before_the_first_step_is_one_more_loss(front_end, rank, meeting, says):
    """In attach(), which has two meetings, or in resume(), when the job can ask who is there; `rank` is its new one."""
    told = {"front_end": front_end, "at_least": 2, "timeout_s": 15, "dies": (rank, meeting)}
    with processes(4, **told) as (killed, *ranks):
        for each in [killed, *ranks]:
            each.let_in()
        for each in ranks:
            each.wait_for(lambda each=each: 5 in each.steps())
        killed.process.kill()
        ranks[0].wait_for(lambda: any(each.process.poll() is not None for each in ranks))
        left = [each for each in ranks if each.process.poll() is None]
        for each in left:
            each.wait_for(lambda each=each: each.all("ended"))

    for each in left:
        assert [count for count, _ in groupby(words["ranks"] for words in each.resumed())] == [4, 2]
        assert says in re.sub(r" \(host .*?\)", "", each.all("error")[1])
    assert len({each.all("ended")[0] for each in left}) == 1


@pytest.fixture
def rendezvous() -> Iterator[gw.Rendezvous]:
    yield gw.Rendezvous(dist.HashStore(), at_least=1, last_call_timeout=0.05, backend="gloo")
    if dist.is_initialized():
        dist.destroy_process_group()


def goes_on(rendezvous: gw.Rendezvous, model: nn.Module) -> tuple[gw.Handle, int, DistributedDataParallel]:
    handle = gw.attach(ddp := DistributedDataParallel(model), gw.TopK(0.1), elastic=True)
    return handle, rendezvous.resume(handle), ddp


def test_who_meets_without_a_handle_goes_on_from_the_one_that_was_resumed(rendezvous):
    model = nn.Linear(8, 8)
    rendezvous.meet()
    handle, _, ddp = goes_on(rendezvous, model)
    for _ in range(2):
        ddp(torch.randn(4, 8)).sum().backward()
    before = handle.state_dict()
    rendezvous.meet()
    handle, step, _ = goes_on(rendezvous, model)
    assert step == 2
    torch.testing.assert_close(handle.state_dict()["weight//residual"], before["weight//residual"], rtol=0, atol=0)
    assert before["weight//residual"].any()


def test_a_plan_that_was_installed_goes_on_with_what_only_it_can_keep(rendezvous):
    model = nn.Linear(8, 8)
    plan = gw.Plan((gw.Group(("weight", "bias"), gw.Dion(2), gw.Residual(), gw.AllReduce()),))
    rendezvous.meet()
    handle, _, ddp = goes_on(rendezvous, model)
    handle.replan(plan)
    ddp(torch.randn(4, 8)).sum().backward()
    before = handle.state_dict()
    rendezvous.meet()
    handle, _, _ = goes_on(rendezvous, model)
    assert handle.plan == plan
    torch.testing.assert_close(handle.state_dict()["weight//residual"], before["weight//residual"], rtol=0, atol=0)
    assert before["weight//residual"].any()


def test_a_handle_that_was_detached_has_nothing_to_go_on_from(rendezvous):
    model = nn.Linear(8, 8)
    rendezvous.meet()
    handle, *_ = goes_on(rendezvous, model)
    handle.detach()
    for given in (handle, None):
        with pytest.raises(ValueError, match=r"was detached, and its state is gone; call meet\(handle\), not"):
            rendezvous.meet(given)


def test_a_model_without_ddp_begins_alone(rendezvous):
    rendezvous.meet()
    handle = gw.attach(nn.Linear(8, 8), gw.TopK(0.1), elastic=True)
    assert (handle.elastic, rendezvous.resume(handle)) == (True, 0)
    with pytest.raises(ValueError, match="steps of a model without DDP; wrap it before others can join"):
        rendezvous.meet()


def test_a_second_handle_is_refused_for_the_state_of_one_alone_is_kept(rendezvous):
    model = nn.Linear(8, 8)
    rendezvous.meet()
    goes_on(rendezvous, model)
    second = gw.attach(DistributedDataParallel(nn.Linear(8, 8)), gw.TopK(0.1), elastic=True)
    with pytest.raises(
        ValueError, match=r"another was resumed since meet\(\); put both models into one module, and that into one DDP"
    ):
        rendezvous.resume(second)
    second.detach()
    rendezvous.meet()
    goes_on(rendezvous, model)
