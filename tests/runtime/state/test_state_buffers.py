"""State of gradient size moves with its slots bit for bit, and so does what is known of it."""

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gradwire.memories import RESIDUAL
from gradwire.ops.noise import Seed
from gradwire.ops.workspace import Workspace
from gradwire.runtime.state.state_buffers import StateBuffers
from tests.support.harness import CPU, SMALL, slots_of

SLOTS = slots_of(SMALL | {"empty": torch.empty(0, 3), "long.weight": torch.empty(40, 41)})
FEW = slots_of({"a": torch.empty(3), "b": torch.empty(20), "c": torch.empty(5)})
DTYPES = [torch.float32, torch.bfloat16, torch.int8]


def test_a_slot_takes_its_state_and_its_mark_of_use_along():
    buffers = StateBuffers(FEW, CPU)
    buffers.follow([[0], [1]])
    buffers.need(RESIDUAL)
    buffers.write(RESIDUAL, 1, torch.ones(20))
    for groups in ([[1, 0]], [[1], [2, 0]]):
        buffers.follow(groups)
        assert [buffers.used(RESIDUAL, slot) for slot in (0, 1, 2)] == [False, True, False]
        assert [buffers.read(RESIDUAL, slot).sum() for slot in (0, 1)] == [0, 20]


def test_slots_of_which_only_some_took_part_in_a_step_are_a_group_again():
    buffers = StateBuffers(FEW, CPU)
    buffers.follow([[0, 1, 2]])
    buffers.need(RESIDUAL)
    for slot in (0, 1, 2):
        buffers.write(RESIDUAL, slot, torch.full(FEW[slot].shape, 1.0 + slot))
    # a step of the slot in the middle alone swaps its halves
    part = buffers.part(RESIDUAL, [1])
    part.double_buffer.write.fill_(9)
    part.commit(used=True)
    whole = buffers.part(RESIDUAL, [0, 1, 2])
    assert whole.double_buffer.read.tolist() == [1] * 3 + [9] * 20 + [3] * 5
    # what all of them write is the state once it is committed
    whole.double_buffer.write.fill_(7)
    assert [buffers.read(RESIDUAL, slot).unique().item() for slot in (0, 1, 2)] == [1, 9, 3]
    whole.commit(used=True)
    assert [buffers.read(RESIDUAL, slot).unique().item() for slot in (0, 1, 2)] == [7, 7, 7]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_state_is_what_was_last_written_wherever_it_moves(dtype: torch.dtype, seed: int):
    chance, buffers = random.Random(seed), StateBuffers(SLOTS, CPU)
    kept: dict[int, Tensor] = {}
    for turn in range(30):
        groups = some_groups(chance)
        # a plan, which may lack slots
        buffers.follow(groups)
        buffers.need(RESIDUAL, dtype)
        assert_kept(buffers, kept)
        # a step of some of its groups, good or not
        for group in chance.sample(groups, chance.randint(1, len(groups))):
            step(buffers, group, turn, kept, good=chance.random() < 0.7)
        assert_kept(buffers, kept)
        # a loaded state
        if chance.random() < 0.2:
            load(buffers, chance, turn, kept)
            assert_kept(buffers, kept)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_state_goes_to_a_wider_type_and_back_bit_for_bit(dtype: torch.dtype):
    buffers = StateBuffers(SLOTS, CPU)
    buffers.follow([range(len(SLOTS))])
    buffers.need(RESIDUAL, dtype)
    for slot in range(len(SLOTS)):
        buffers.write(RESIDUAL, slot, random_like(slot, slot))
    before = [buffers.read(RESIDUAL, slot).clone() for slot in range(len(SLOTS))]
    for other in (torch.float32, dtype):
        buffers.need(RESIDUAL, other)
        assert all(
            torch.equal(buffers.read(RESIDUAL, i), kept.to(dtype=buffers.read(RESIDUAL, i).dtype))
            for i, kept in enumerate(before)
        )


def some_groups(chance: random.Random) -> list[list[int]]:
    """Slots in any order, some of them left out, in groups."""
    order = chance.sample(range(len(SLOTS)), chance.randint(2, len(SLOTS)))
    cuts = sorted({0, len(order), *chance.sample(range(1, len(order)), chance.randint(0, len(order) - 1))})
    return [order[a:b] for a, b in pairwise(cuts)]


def random_like(slot: int, seed: int) -> Tensor:
    return SLOTS[slot].view(torch.randn(SLOTS[slot].numel, generator=torch.Generator().manual_seed(seed)))


def step(buffers: StateBuffers, group: list[int], turn: int, kept: dict[int, Tensor], *, good: bool) -> None:
    """A step of a group writes its other half, which counts where it is good."""
    part = buffers.part(RESIDUAL, group)
    written = part.double_buffer.write
    x = torch.cat([torch.randn(SLOTS[slot].numel, generator=torch.Generator().manual_seed(turn)) for slot in group])
    part.keep(x, written, Seed(turn))
    if not good:
        return
    numbers = part.numbers_of(written, Workspace(CPU)).float()
    part.commit(used=True)
    for slot, own in zip(group, numbers.split([SLOTS[slot].numel for slot in group]), strict=True):
        kept[slot] = SLOTS[slot].view(own.clone())


def load(buffers: StateBuffers, chance: random.Random, turn: int, kept: dict[int, Tensor]) -> None:
    """Some slots are written, and others cleared; some of them may have no place yet."""
    for slot in chance.sample(range(len(SLOTS)), 3):
        buffers.hold([slot])
        if chance.random() < 0.5:
            buffers.write(RESIDUAL, slot, random_like(slot, turn))
            kept[slot] = buffers.read(RESIDUAL, slot).float().clone()
        else:
            buffers.clear(RESIDUAL, slot)
            kept.pop(slot, None)


def assert_kept(buffers: StateBuffers, kept: dict[int, Tensor]) -> None:
    for slot in range(len(SLOTS)):
        assert buffers.used(RESIDUAL, slot) == (slot in kept)
        if slot in kept:
            assert torch.equal(buffers.read(RESIDUAL, slot).float(), kept[slot])
