"""States of local steps: what joined the rounds goes on from them, and what does not fit changes nothing."""

import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradwire as gw
from gradwire.runtime.exchanges.group_input import GroupInput
from gradwire.runtime.exchanges.replica_exchange import ReplicaExchange
from tests.support.harness import raising, together


def network(frozen: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(not frozen)
    return model


def wrapped(model: nn.Module, transport: gw.Transport | None = None, **options: Any) -> gw.LocalSteps:
    compressor = options.pop("compressor", gw.TopK(0.3))
    return gw.LocalSteps(
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.5), model, compressor,
        **{"inner_steps": 2, "transport": transport or gw.Threads.group(1)[0], **options},
    )  # fmt: skip


def train(model: nn.Module, optimizer: gw.LocalSteps, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()


def thawed(**options: Any) -> tuple[nn.Module, gw.LocalSteps]:
    """A training whose first layer has joined the rounds."""
    model = network(frozen=True)
    optimizer = wrapped(model, **options)
    train(model, optimizer, 0, 2)
    model[0].requires_grad_(True)
    train(model, optimizer, 2, 3)
    return model, optimizer


def check_goes_on(own: tuple[nn.Module, gw.LocalSteps], other: nn.Module, resumed: gw.LocalSteps) -> None:
    model, optimizer = own
    state = deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    resumed.load_state_dict(state["optimizer"])
    other.load_state_dict(state["model"])
    train(model, optimizer, 5, 4)
    train(other, resumed, 5, 4)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("options", [{}, {"fragments": 2, "delay": 1}, {"eager": True}], ids=str)
def test_what_was_thawed_goes_on_from_a_state_in_a_job_that_thaws_it_before_or_from_the_beginning(options):
    other = network()
    if "fragments" not in options:  # a count would cut what joined elsewhere
        check_goes_on(thawed(**options), other, wrapped(other, **options))
    other = network(frozen=True)
    resumed = wrapped(other, **options)
    other[0].requires_grad_(True)
    check_goes_on(thawed(**options), other, resumed)


def test_there_is_nothing_to_trace_in_local_steps():
    optimizer = wrapped(network())
    with pytest.raises(ValueError, match="local steps send nothing in backward to trace"):
        optimizer.handle.trace()
    optimizer.handle.detach()


def test_the_outer_momenta_are_found_by_name_though_the_plan_has_another_order():
    names = [name for name, _ in network().named_parameters()]
    own, other = network(), network()
    optimizer = wrapped(own, compressor=gw.FP32(), groups=gw.groups.listed([[name] for name in names]))
    train(own, optimizer, 0, 5)
    resumed = wrapped(other, compressor=gw.FP32(), groups=gw.groups.listed([[name] for name in reversed(names)]))
    check_goes_on((own, optimizer), other, resumed)


def test_what_joins_takes_outer_steps_with_the_scheduled_rate():
    model = network(frozen=True)
    optimizer = wrapped(model)
    scheduler = torch.optim.lr_scheduler.MultiplicativeLR(optimizer.outer, lambda _: 0.5)
    train(model, optimizer, 0, 2)
    scheduler.step()
    model[0].requires_grad_(True)
    train(model, optimizer, 2, 2)
    scheduler.step()
    (group,) = optimizer.outer.param_groups
    assert len(group["params"]) == 4
    assert group["lr"] == 0.7 / 4


def of_plain_optimizer(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    return torch.optim.SGD(model.parameters(), 0.1).state_dict()


def one_group_more(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    groups = state["param_groups"]
    return state | {"param_groups": [*groups, {**groups[0], "params": [4]}]}


def outer_of_two(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    own = deepcopy(state["local_steps"])
    own["outer"]["param_groups"] *= 2
    return state | {"local_steps": own}


def another_outer(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    return state | {"local_steps": {**state["local_steps"], "outer class": "Adam"}}


def the_same(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    return state


WRONG = {
    "plain": ({}, {}, of_plain_optimizer, "pass what optimizer.state_dict() returned"),
    "frozen": ({}, {"model": partial(network, True)}, the_same, "parameter '0.weight' is (4, 4) in the state"),
    "inner groups": ({}, {}, one_group_more, "has groups of 4 and 1 parameters, and here of 4"),
    "outer groups": ({}, {}, outer_of_two, "has 2 groups"),
    "outer class": ({}, {}, another_outer, "the state's outer optimizer is Adam, and here SGD"),
    "fragments": ({"fragments": 2, "delay": 1}, {"delay": 1}, the_same, "make LocalSteps with the same fragments"),
    "more": ({"delay": 2}, {"fragments": 2, "delay": 2}, the_same, "make LocalSteps with the same fragments"),
    "delay": ({"delay": 2}, {}, the_same, "with the delay and mix that it was saved with"),
    "mix": ({"delay": 2, "mix": 0.5}, {"delay": 2}, the_same, "with the delay and mix that it was saved with"),
    "eager": ({"eager": True}, {}, the_same, "saved with eager=True"),
    "not eager": ({}, {"eager": True}, the_same, "saved with eager=False"),
    "eager fragments": (
        {"eager": True, "fragments": 2}, {"eager": True}, the_same, "make LocalSteps with the same fragments",
    ),
}  # fmt: skip
Change = Callable[[nn.Module, dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(("before", "after", "change", "right"), WRONG.values(), ids=WRONG)
def test_a_state_that_does_not_fit_is_one_line_and_changes_nothing(
    before: dict[str, Any], after: dict[str, Any], change: Change, right: str
):
    model = network()
    optimizer = wrapped(model, **before)
    train(model, optimizer, 0, 5)
    state = change(model, deepcopy(optimizer.state_dict()))
    options = dict(after)
    other = options.pop("model", network)()
    resumed = wrapped(other, **options)
    train(other, resumed, 7, 3)
    kept = deepcopy(resumed.state_dict())
    with pytest.raises(ValueError, match=re.escape(right)) as error:
        resumed.load_state_dict(state)
    assert "\n" not in str(error.value)
    assert_same(resumed.state_dict(), kept)


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert_same(dict(enumerate(a)), dict(enumerate(b)))
    elif isinstance(a, Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


def test_what_one_rank_cannot_load_none_does():
    transports, models = gw.Threads.group(2), [network(), network()]

    def load(rank: int) -> str:
        optimizer = wrapped(models[rank], transports[rank])
        train(models[rank], optimizer, 0, 2)
        state = deepcopy(optimizer.state_dict())
        try:
            optimizer.load_state_dict(one_group_more(models[rank], state) if rank else state)
        except ValueError as error:
            return str(error)
        return ""

    errors = raising(together(2, load))
    assert all("rank 1 cannot go on: the state's inner optimizer has groups of 4 and 1" in error for error in errors)


def loaded_by_two(states: list[dict[str, Any]]) -> list[str]:
    """What each of two ranks says that loads its state."""
    transports, models = gw.Threads.group(2), [network(), network()]

    def load(rank: int) -> str:
        try:
            wrapped(models[rank], transports[rank]).load_state_dict(states[rank])
        except ValueError as error:
            return str(error)
        return ""

    return [str(said) for said in raising(together(2, load))]


def states_of(ranks: int, steps: int = 2) -> list[dict[str, Any]]:
    """The states of ranks after so many inner steps; then two more of each."""
    transports, models = gw.Threads.group(ranks), [network() for _ in range(ranks)]

    def run(rank: int) -> list[dict[str, Any]]:
        optimizer = wrapped(models[rank], transports[rank], inner_steps=3)
        train(models[rank], optimizer, 0, steps)
        states = [deepcopy(optimizer.state_dict())]
        train(models[rank], optimizer, steps, 2)
        return [*states, deepcopy(optimizer.state_dict())]

    return [state for states in zip(*raising(together(ranks, run)), strict=True) for state in states]


def test_local_steps_of_different_trainings_or_inner_steps_do_not_go_on_together():
    ours, theirs = states_of(2), states_of(2)
    assert all("differ in the state's training" in said for said in loaded_by_two([ours[0], theirs[1]]))
    # of one round, in which as much was sent
    first, _, _, last = states_of(2, steps=0)
    assert all("differ in the state's inner steps: 0 on rank 0, 2" in said for said in loaded_by_two([first, last]))
    assert loaded_by_two(ours[:2]) == ["", ""]


def test_a_state_of_local_steps_of_other_ranks_names_the_call_that_works():
    said = "of 1 rank, and here is rank 0 of 2; load each rank's own; to go on with other"
    for error in loaded_by_two(2 * states_of(1)[:1]):
        assert said in error
        assert "load optimizer.stateful(path)" in error
        assert "reshard" not in error


@pytest.mark.parametrize("options", [{}, {"delay": 1}, {"eager": True}], ids=str)
@pytest.mark.parametrize("fragments", [1, 2, 4])
def test_the_groups_of_each_fragment_take_every_turn(
    fragments: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """However many others are sent in between, ACP-SGD's factors take turns; also after a checkpoint."""
    turns: dict[int, list[int]] = {}

    def enter(exchange: ReplicaExchange, given: GroupInput, step: int) -> None:
        turns.setdefault(exchange.index, []).append(step)
        entered(exchange, given, step)

    entered = ReplicaExchange.enter
    monkeypatch.setattr(ReplicaExchange, "enter", enter)
    ways = {"compressor": gw.ACPSGD(1), "fragments": fragments, "inner_steps": 4, **options}
    model = network()
    optimizer = wrapped(model, **ways)
    train(model, optimizer, 0, 8)
    other = network()
    resumed = wrapped(other, **ways)
    resumed.load_state_dict(optimizer.state_dict())
    train(other, resumed, 8, 8)
    resumed.state_dict()
    assert len(turns) >= fragments
    assert all(own == [0, 1, 2, 3] for own in turns.values())
