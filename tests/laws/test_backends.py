"""The library and torch, backend against backend, through whole exchanges of all rows of the table."""

from unittest import mock

import torch

from gradwire.compressors import LowRank
from gradwire.ops import native
from tests.support.cases import CASES, Case, rows
from tests.support.harness import SMALL, draw, slots_of
from tests.support.kernel_cases import needs_library
from tests.support.lane import WORLD, Lane

CPU = torch.device("cpu")
SLOTS = slots_of(SMALL | {"wide.weight": torch.empty(301, 257)})


@needs_library
@rows(CASES)
def test_means_and_residuals_are_the_same(case: Case):
    near = 3e-6 if isinstance(case.compressor, LowRank) else 1e-6  # products are added up in another order
    with torch.no_grad():
        ours, theirs = Lane(case, SLOTS, CPU), Lane(case, SLOTS, CPU)
        # where a last bit differs, bfloat16 may round to the other neighbour, and later steps are others
        for number in range(1 if case.residual_rounding else 3):
            grads = draw(SLOTS, WORLD, number)
            means = ours.step(grads)
            with mock.patch.object(native, "available", return_value=False):
                expected = theirs.step(grads)
            for mean, other in zip(means[0], expected[0], strict=True):
                torch.testing.assert_close(mean, other, rtol=0, atol=near)
            if case.conserves:
                for kept, other in zip(ours.residuals(), theirs.residuals(), strict=True):
                    least = case.residual_rounding * float(other.abs().max())
                    torch.testing.assert_close(kept, other, rtol=0, atol=max(4e-6, least))
