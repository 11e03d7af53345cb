"""The published formulas of what a collective sends, at four and at five ranks."""

import pytest
import torch

from gradwire import wire
from gradwire.collective import Broadcast, Message, Sum
from gradwire.wire import Wire

BYTES = 1000


@pytest.mark.parametrize(
    ("formula", "four", "five"),
    [
        (wire.all_reduce, Wire(6, 1500), Wire(8, 1600)),
        (wire.all_reduce_by_trees, Wire(4, 2000), Wire(6, 2000)),
        (wire.all_gather, Wire(3, 3000), Wire(4, 4000)),
        (wire.all_to_all, Wire(3, 750), Wire(4, 800)),
        (wire.broadcast, Wire(2, 2000), Wire(3, 3000)),
        (wire.broadcast_around, Wire(3, 1000), Wire(4, 1000)),
    ],
)
def test_a_formula_is_the_published_one(formula, four: Wire, five: Wire):
    assert (formula(BYTES, 4), formula(BYTES, 5)) == (four, five)
    assert formula(BYTES, 1).messages == 0


def test_collectives_count_what_their_formulas_say():
    message = Message.plain(torch.zeros(BYTES // 4))
    assert [Sum(message).wire_bytes(ranks) for ranks in (4, 5)] == [1500, 1600]
    assert [Broadcast(message, 0).wire_bytes(ranks) for ranks in (4, 5)] == [750, 800]


def test_messages_and_bytes_cost_seconds():
    assert (Wire(2, 100) + Wire(1, 50)).seconds(latency_s=1.0, bytes_per_second=50.0) == 6.0
