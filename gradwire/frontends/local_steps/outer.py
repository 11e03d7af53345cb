"""The outer optimizer of local steps, whose parameters are anchors. In a state they have names, for in another job
their order may be another one."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradwire.frontends.local_steps.fragments import Fragment
from gradwire.frontends.owners import held_by

OuterOptimizer = Callable[[list[Tensor]], Optimizer]
"""Makes the optimizer of the anchors: a class of torch's, or a function."""


def outer_step(outer: Optimizer, fragment: Fragment, gradients: Mapping[str, Tensor]) -> None:
    """Steps a fragment's anchors."""
    for name, anchor in fragment.anchors.items():
        anchor.grad = gradients[name].to(anchor.dtype)
    outer.step()
    outer.zero_grad()


def outer_state(outer: Optimizer, anchors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The outer optimizer's state and class, and the names of its parameters in its order."""
    return {
        "outer": outer.state_dict(), "outer class": type(outer).__name__, "outer names": _names(outer, anchors),
    }  # fmt: skip


def outer_of(state: Mapping[str, Any], outer: Optimizer, anchors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The outer optimizer's part of a state, in its own order. Raises ValueError where it is of
    another class, or has other groups."""
    # states of earlier versions do not say it
    saved_class, own_class = state.get("outer class"), type(outer).__name__
    if saved_class not in (None, own_class):
        raise ValueError(
            f"the state's outer optimizer is {saved_class}, and here {own_class}; pass the outer optimizer that it was "
            "saved with"
        )
    saved, own = state["outer"], outer.state_dict()["param_groups"]
    if len(saved["param_groups"]) != len(own):
        raise ValueError(
            f"the state's outer optimizer has {len(saved['param_groups'])} groups, and here {len(own)}; pass the outer "
            "optimizer that it was saved with"
        )
    # without names, as states of 0.2.0 are, the order is the same
    names = _names(outer, anchors)
    places = {name: place for place, name in enumerate(state.get("outer names", names))}
    kept = saved["state"]
    return {
        "state": {index: kept[places[name]] for index, name in enumerate(names) if places[name] in kept},
        "param_groups": [
            {**group, "params": here["params"]} for group, here in zip(saved["param_groups"], own, strict=True)
        ],
    }


def outer_facts(outer: Optimizer) -> dict[str, str]:
    """The outer optimizer as ranks compare it: its class, and its numbers and words by group."""
    facts = {"outer": type(outer).__name__}
    for index, group in enumerate(outer.param_groups):
        for key, value in group.items():
            plain = value.tolist() if isinstance(value, Tensor) else value
            if isinstance(plain, bool | int | float | str | tuple | None):
                facts[f"outer's {key}{f' in group {index}' if index else ''}"] = str(plain)
    return facts


def _names(outer: Optimizer, anchors: Mapping[str, Tensor]) -> list[str]:
    names = {id(anchor): name for name, anchor in anchors.items()}
    return [names[id(anchor)] for anchor in held_by(outer)]
