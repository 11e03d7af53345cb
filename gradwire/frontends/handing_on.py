"""What ranks that go on together take from the state of one of them, and what each keeps of its own."""

from collections.abc import Callable
from dataclasses import replace

from gradwire.checkpoint import GROUP, SHARED, Exported, StateDict, Unpacked, pack, unpack
from gradwire.frontends.handle import Handle
from gradwire.plans import Plan


def without_memories(state: StateDict) -> StateDict:
    """What is small: alike on all ranks, or something that a newcomer begins with as well."""
    return _only(state, lambda key: key.startswith((SHARED, GROUP)))


def memories_alone(state: StateDict) -> StateDict:
    """The other half, what a rank has of its own: all that it keeps where others have gone on without it."""
    return _only(state, lambda key: not key.startswith((SHARED, GROUP)))


def _only(state: StateDict, kept: Callable[[str], bool]) -> StateDict:
    """Without those of the slots' and groups' tensors whose keys are not kept."""
    whole = unpack(state)
    exported = {
        name: {key: tensor for key, tensor in tensors.items() if kept(key)} for name, tensors in whole.exported.items()
    }
    return pack(exported, whole.job, whole.step, whole.about)


def go_on(handle: Handle, alike: StateDict, own: StateDict | None, rank: int, ranks: int) -> None:
    """From what all have `alike`, which is `without_memories`, and from this rank's `own` memories; a newcomer has
    none. All call this together, when `handle` is made; each loads its state, then the plan is in force that was."""
    first = unpack(alike)
    about = replace(first.about, rank=rank, ranks=ranks)
    handle.load_state_dict(_with_memories(replace(first, about=about), unpack(own).exported if own else {}))
    plan = Plan.from_json(about.plan)
    if plan != handle.plan:
        handle.replan(plan)


def _with_memories(first: Unpacked, own: Exported) -> StateDict:
    """The state of one rank, with all that is this rank's own."""
    exported = {
        name: first.exported.get(name, {})
        | {key: t for key, t in own.get(name, {}).items() if not key.startswith(SHARED)}
        for name in {**first.exported, **own}
    }
    return pack(exported, first.job, first.step, first.about)
