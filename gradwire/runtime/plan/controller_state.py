"""The part of a state about the controller: what the controller itself saves, and as texts its class, the plans, the
number of ranks and the requests that belong to it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from torch import Tensor

from gradwire.controllers import Controller
from gradwire.controllers.requests import Change, NativeRequest, ProfileRequest, change_from_json, change_to_json
from gradwire.options import one_line
from gradwire.plans import Plan
from gradwire.text_tensors import letters, text_of

ControllerState = Mapping[str, Tensor]
"""What `controller_state` returns."""
_TEXTS = ("controller", "plan", "origin", "replicas", "native", "decided")
"""Its keys that are not the controller's own."""


def controller_state(
    controller: Controller, plan: Plan, origin: Plan, replicas: int, native: Change | None, decided: Change | None
) -> dict[str, Tensor]:
    """The controller's state, and as texts its class, the plan in force, the plan that it was made from, the number of
    ranks whose default communicators they have, the request by which the plan is `native`, if it is, and a decision
    that is not in force yet."""
    name = type(controller).__name__
    texts = {"controller": name, "plan": plan.to_json(), "origin": origin.to_json(), "replicas": str(replicas)}
    requests = {"native": native, "decided": decided}
    texts |= {name: change_to_json(change) for name, change in requests.items() if change is not None}
    return controller.state_dict() | {name: letters(text) for name, text in texts.items()}


def begin(controller: Controller, plan: Plan) -> Plan:
    """The plan that the controller begins with. Raises ValueError where that is none, and where its own part of a state
    is no dictionary of tensors, or has a name that `controller_state` uses."""
    kind, first, state = type(controller).__name__, controller.begin(plan), cast(Any, controller.state_dict())
    if not isinstance(first, Plan):
        raise ValueError(f"{kind}.begin() returns {one_line(first)}, no gw.Plan; return the one to start with")
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ValueError(
            f'{kind}.state_dict() returns {one_line(state)}, not tensors by name; write {{"steps": torch.tensor(3)}}'
        )
    if taken := [name for name in state if name in _TEXTS]:
        raise ValueError(f"{kind} saves {taken[0]!r}, a name of Gradwire's own; give it another")
    return first


def own_part(controller: Controller, state: ControllerState) -> ControllerState:
    """The state, where this controller can go on from it; nothing of one that another controller saved."""
    return state if _name_in(state) in ("", type(controller).__name__) else {}


def difference(controller: Controller, state: ControllerState, origin: Plan) -> str:
    """In one line what the job's controller does otherwise than the `state` that was loaded has it, where the job's own
    plan is `origin`; "" where it goes on as that did."""
    here = type(controller).__name__
    if not state:
        return ""
    if not own_part(controller, state):
        return f"the state has what {_name_in(state)} knew; {here} begins anew"
    changed = controller.changed(origin_of(state), origin)
    if not changed:
        return ""
    name, ways = next(iter(changed.items()))
    was, own = (f"{each.compressor} + {each.memory} + {each.communicator}" for each in ways)
    return f"the state sent {name!r} as {was}; {here} goes on from this job's {own}"


def load_controller(controller: Controller, state: ControllerState) -> None:
    """Loads the controller's own part. Raises ValueError where the controller then saves another one."""
    own = {name: tensor for name, tensor in state.items() if name not in _TEXTS}
    controller.load_state_dict(own)
    if not _equal(own, controller.state_dict()):
        raise ValueError("it is not what such a controller saves")


def plan_of(state: ControllerState) -> Plan:
    """The plan that was in force."""
    return Plan.from_json(text_of(state["plan"]))


def origin_of(state: ControllerState) -> Plan:
    """The plan from which the controller made its plans."""
    return Plan.from_json(text_of(state["origin"]))


def _name_in(state: ControllerState) -> str:
    """The class of the controller that saved it; a state of an earlier version does not say it."""
    return text_of(state["controller"]) if "controller" in state else ""


def ranks_of(state: ControllerState) -> int | None:
    """The number of ranks whose default communicators the plans have; a state of an earlier version does not say it."""
    return int(text_of(state["replicas"])) if "replicas" in state else None


def change_of(state: ControllerState, key: Literal["native", "decided"]) -> Change | None:
    """The request by which the plan was native, or the decision that was not in force yet, if there was one."""
    return change_from_json(text_of(state[key])) if key in state else None


def with_plans(state: ControllerState, replaced: Callable[[Plan], Plan], replicas: int) -> ControllerState:
    """The state with another plan, for so many ranks, in place of each that it has, that of a decision included."""
    texts = {"plan": replaced(plan_of(state)).to_json(), "origin": replaced(origin_of(state)).to_json()}
    texts["replicas"] = str(replicas)
    match change_of(state, "decided"):
        case Plan() as plan:
            texts["decided"] = change_to_json(replaced(plan))
        case ProfileRequest() as request:
            texts["decided"] = change_to_json(replace(request, plan=replaced(request.plan)))
        case NativeRequest() | None:
            pass
    return {**state, **{name: letters(text) for name, text in texts.items()}}


def _equal(one: ControllerState, other: ControllerState) -> bool:
    """Whether names, types, shapes and numbers are the same, NaN included."""

    def kind(tensors: ControllerState) -> object:
        return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

    return kind(one) == kind(other) and all(
        bool(tensor.cpu().eq(other[name].cpu()).logical_or(tensor.cpu().isnan()).all()) for name, tensor in one.items()
    )
