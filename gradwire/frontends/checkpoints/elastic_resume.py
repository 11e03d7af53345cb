"""Going on after ranks were lost or came: each loads one rank's common state, and the memories that it kept itself."""

from collections.abc import Sequence
from dataclasses import replace

from gradwire.checkpoint import StateDict, is_small, pack, unpack
from gradwire.compressors.context import SHARED
from gradwire.frontends.handle import Handle
from gradwire.plans import Plan
from gradwire.runtime.plan.controller_state import origin_of


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


def go_on(handle: Handle, common: StateDict, own: StateDict | None, rank: int, ranks: int) -> None:
    """Goes on from the state that all have in `common`, without memories, and from this rank's `own`, which a newcomer
    lacks. All ranks call this together with a new `handle`, which has the plan of its options; then the old one is in
    force. But where the old plan of another number of ranks differs in collectives alone, those are the options': by
    default they are for as many ranks as there are."""
    first = unpack(common)
    # the plan that the controller began with, where there is one, so that it goes on from that; a job without one keeps
    # what an earlier job's controller has left, and has the plan that was in force
    begun = handle.controlled and "origin" in first.job
    plan, given = origin_of(first.job) if begun else Plan.from_json(first.about.plan), handle.origin
    moved = given and first.about.ranks != ranks and _without_collectives(plan) == _without_collectives(given)
    # all ranks together
    if plan != given and not moved:
        handle.replan(plan)
    # what is equal on all ranks comes from the first; memories are those that each has kept
    kept = unpack(own).exported if own else {}
    exported = {
        name: first.exported.get(name, {})
        | {key: tensor for key, tensor in kept.get(name, {}).items() if not key.startswith(SHARED)}
        for name in {**first.exported, **kept}
    }
    about = replace(first.about, rank=rank, ranks=ranks)
    handle.load_state_dict(pack(exported, first.job, first.step, about))


def _without_collectives(plan: Plan) -> Sequence[object]:
    """What tells the plan from others, without its collectives."""
    return [(group.slots, group.compressor, group.memory) for group in plan.groups]
