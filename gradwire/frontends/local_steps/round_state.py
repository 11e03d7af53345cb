"""The state of fragments between two rounds, and checks that local steps can go on from one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradwire.frontends.local_steps.fragments import Fragment
from gradwire.frontends.local_steps.schedule import Schedule
from gradwire.runtime.steps.gradient_collector import StepFence
from gradwire.torch_private.foreach import copy_each


@dataclass(frozen=True)
class Sent:
    """A fragment that was sent and whose mean is not used yet."""

    step: int
    """The inner step after which it was sent."""
    fence: StepFence | None
    """When the worker has come there, the mean is in place; None where the mean was loaded."""
    own_finite: Tensor | None = None
    """Whether this replica's pseudo-gradients were finite, (); None where the mean was loaded."""


def check_groups(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Raises ValueError where the inner optimizer cannot load its state."""
    there, here = (_sizes(groups) for groups in (state.get("param_groups", ()), optimizer.param_groups))
    if there != here:
        raise ValueError(
            f"the state's inner optimizer has groups of {there} parameters, and here of {here}; add what was added to "
            "it, and load the state then"
        )


def eager_state(fragment: Fragment) -> dict[str, Any]:
    """The means that the next round corrects, and this replica's parts of them."""
    return {"means": copies(fragment.pseudo_gradients), "moved": copies(fragment.last_own)}


def sent_state(fragment: Fragment, index: int, step: int) -> dict[str, Any]:
    """A fragment that was sent after inner step `step`, and whose mean has not been received."""
    return {
        "fragment": index, "sent at": step, "sent": copies(fragment.sent), "means": copies(fragment.pseudo_gradients),
    }  # fmt: skip


def load_fragments(fragments: Sequence[Fragment], state: Mapping[str, Any]) -> dict[int, int]:
    """Loads a state that was checked; returns, by number, the fragments that are under way, and when they were sent."""
    for fragment, kept in zip(fragments, state.get("eager", []), strict=False):
        copy_by_name(fragment.pseudo_gradients, kept["means"])
        copy_by_name(fragment.last_own, kept["moved"])
    sent_at: dict[int, int] = {}
    for kept in state.get("under way", []):
        index = kept["fragment"]
        sent_at[index] = kept["sent at"]
        copy_by_name(fragments[index].pseudo_gradients, kept["means"])
        copy_by_name(fragments[index].sent, kept["sent"])
    return sent_at


def check_shapes(there: Mapping[str, Sequence[int]], here: Mapping[str, Sequence[int]]) -> None:
    """Raises ValueError where a state has other parameters, by name and shape, than are here."""
    for name in {**here, **there}:
        if there.get(name) != here.get(name):
            raise ValueError(
                f"parameter {name!r} is {there.get(name, 'not')} in the state and {here.get(name, 'not')} here; freeze "
                "and thaw as before, and load what this model saved"
            )


def check_progress(
    state: Mapping[str, Any], anchors: Mapping[str, Tensor], fragments: Sequence[Fragment], schedule: Schedule
) -> None:
    """Raises ValueError for what is no state of rounds, and for one of other parameters, fragments or schedules."""
    if not {"step", "anchors", "outer"} <= state.keys():
        raise ValueError(
            "this is no state of local steps; pass what optimizer.state_dict() returned, or have "
            "torch.distributed.checkpoint save and load optimizer.stateful()"
        )
    check_shapes(*({name: tuple(t.shape) for name, t in tensors.items()} for tensors in (state["anchors"], anchors)))
    # what is under way must fit as well
    if schedule.eager != ("eager" in state):
        raise ValueError(f"the state was saved with eager={not schedule.eager}; make LocalSteps with that")
    if schedule.eager:
        _check_parts({index: kept["means"] for index, kept in enumerate(state["eager"])}, fragments, len(fragments))
    else:
        _check_under_way(state, fragments, schedule)


def _check_under_way(state: Mapping[str, Any], fragments: Sequence[Fragment], schedule: Schedule) -> None:
    _check_parts({kept["fragment"]: kept["means"] for kept in state["under way"]}, fragments)
    for kept in state["under way"]:
        lacks_sent = fragments[kept["fragment"]].sent.keys() - kept["sent"].keys()
        if lacks_sent or kept["sent at"] + schedule.delay <= state["step"]:
            raise ValueError(
                "a fragment was under way that could not come back here; make LocalSteps with the delay and mix that "
                "it was saved with"
            )


def _check_parts(means: Mapping[int, Mapping[str, Tensor]], fragments: Sequence[Fragment], count: int = 0) -> None:
    parts = dict(enumerate(each.parameters.keys() for each in fragments))
    if len(means) < count or any(parts.get(index) != part.keys() for index, part in means.items()):
        raise ValueError(
            "the state has a fragment under way that does not exist here; make LocalSteps with the same fragments and "
            "the same layers frozen, thaw the others, then load"
        )


def _sizes(groups: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(str(len(group["params"])) for group in groups) or "no"


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of each tensor."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def copy_by_name(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    """Copies to each target the source of its name."""
    copy_each([*targets.values()], [sources[name] for name in targets])
