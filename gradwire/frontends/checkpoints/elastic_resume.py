"""Going on after ranks were lost or came: each loads one rank's common state, and the memories that it kept itself."""

from collections.abc import Callable
from dataclasses import replace

from gradwire.checkpoint import Exported, StateDict, Unpacked, is_small, pack, unpack
from gradwire.compressors.context import SHARED
from gradwire.frontends.handle import Handle
from gradwire.plans import Plan
from gradwire.runtime.plan.controller_state import mark_collectives_kept, origin_of


def without_memories(state: StateDict) -> StateDict:
    """A state's small tensors: equal on all ranks, or with a default for newcomers."""
    return _only(state, small=True)


def memories_alone(state: StateDict) -> StateDict:
    """A state's memories: all that a rank keeps where others have gone on without it."""
    return _only(state, small=False)


def _only(state: StateDict, small: bool) -> StateDict:
    """A state with the `small` tensors of slots and groups, or with the others alone."""
    whole = unpack(state)
    exported = {
        name: {key: tensor for key, tensor in tensors.items() if is_small(key) == small}
        for name, tensors in whole.exported.items()
    }
    return pack(exported, whole.job, whole.step, whole.about)


def go_on(
    handle: Handle,
    common: StateDict,
    own: StateDict | None,
    rank: int,
    ranks: int,
    made_for: Callable[[int], Plan] | None = None,
) -> None:
    """Goes on from the state that all have in `common`, without memories, and from this rank's `own`, which a newcomer
    lacks. All ranks call this together with a new `handle`, which has the plan of its options; then the old one is in
    force. But where that is what the options made for the old number of ranks, which `made_for` says, the new handle
    keeps its own: default collectives are for as many ranks as there are."""
    first = unpack(common)
    about, plan = replace(first.about, rank=rank, ranks=ranks), Plan.from_json(first.about.plan)
    if made_for and not handle.controlled and plan == made_for(first.about.ranks):
        plan = handle.plan or plan
    # all ranks together: the plan that the controller began with, where there is one, so that it goes on from that; a
    # job without one keeps what an earlier job's controller has left, and has the plan that was in force
    if handle.controlled and "origin" in first.job:
        handle.replan(origin_of(first.job))
        # and keeps the collectives that it had among other ranks
        mark_collectives_kept(first.job)
    elif plan != handle.plan:
        handle.replan(plan)
    # the common state, with the memories that each has kept
    handle.load_state_dict(_with_memories(replace(first, about=about), unpack(own).exported if own else {}))
    # a controller that began anew has another plan than the one that was in force
    if plan != handle.plan:
        handle.replan(plan)


def _with_memories(first: Unpacked, own: Exported) -> StateDict:
    """The state of one rank, with this rank's own memories."""
    # memories are this rank's; what is equal on all ranks comes from the first
    exported = {
        name: first.exported.get(name, {})
        | {key: t for key, t in own.get(name, {}).items() if not key.startswith(SHARED)}
        for name in {**first.exported, **own}
    }
    return pack(exported, first.job, first.step, first.about)
