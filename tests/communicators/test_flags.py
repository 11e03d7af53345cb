"""The flag that messages carry: what is not finite on one rank is known to all."""

import pytest
import torch

from gradwire.collective import Message, SendReceive
from gradwire.communicators.flags import flagged


@pytest.mark.parametrize(("own", "other"), [(torch.nan, 0.0), (0.0, torch.nan)])
def test_a_flag_that_comes_alone_is_added_to_this_ranks_own(own: float, other: float):
    op = SendReceive(Message.of_numbers(torch.ones(3)), Message.of_numbers(torch.ones(3)), target=1, source=1)
    nonfinite = torch.tensor([own])
    assert op.send.flags is not None
    assert op.receive.flags is not None
    for started in flagged(iter([op]), nonfinite):  # pyright: ignore[reportArgumentType]
        assert started is op
        torch.testing.assert_close(op.send.flags, torch.tensor([own]), equal_nan=True)
        op.receive.flags.fill_(other)
    assert nonfinite.isnan()
