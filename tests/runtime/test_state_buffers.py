"""State of gradient size moves with its slots, and so does what is known of it."""

import torch

from gradwire.memories import RESIDUAL
from gradwire.runtime.state_buffers import StateBuffers
from tests.support.harness import CPU, slots_of

SLOTS = slots_of({"a": torch.empty(3), "b": torch.empty(20), "c": torch.empty(5)})


def test_a_slot_takes_its_state_and_its_mark_of_use_along():
    buffers = StateBuffers(SLOTS, CPU)
    buffers.follow([[0], [1]])
    buffers.need(RESIDUAL)
    buffers.write(RESIDUAL, 1, torch.ones(20))
    for groups in ([[1, 0]], [[1], [2, 0]]):
        buffers.follow(groups)
        assert [buffers.used(RESIDUAL, slot) for slot in (0, 1, 2)] == [False, True, False]
        assert [buffers.view(RESIDUAL, slot).sum() for slot in (0, 1)] == [0, 20]


def test_slots_of_which_only_some_took_part_in_a_step_are_a_group_again():
    buffers = StateBuffers(SLOTS, CPU)
    buffers.follow([[0, 1, 2]])
    buffers.need(RESIDUAL)
    for slot in (0, 1, 2):
        buffers.write(RESIDUAL, slot, torch.full(SLOTS[slot].shape, 1.0 + slot))
    # a step of the slot in the middle alone swaps its halves
    part = buffers.part(RESIDUAL, [1])
    part.double_buffer.write.fill_(9)
    part.commit(used=True)
    whole = buffers.part(RESIDUAL, [0, 1, 2])
    assert whole.double_buffer.read.tolist() == [1] * 3 + [9] * 20 + [3] * 5
    # what all of them write is the state once it is committed
    whole.double_buffer.write.fill_(7)
    assert [buffers.view(RESIDUAL, slot).unique().item() for slot in (0, 1, 2)] == [1, 9, 3]
    whole.commit(used=True)
    assert [buffers.view(RESIDUAL, slot).unique().item() for slot in (0, 1, 2)] == [7, 7, 7]
