"""Readers of things from outside, for seconds; `make fuzz` takes minutes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fuzz import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_whatever_is_read_is_refused_or_holds(target: str):
    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=400))
    def tried(data: bytes) -> None:
        TARGETS[target](data)

    tried()
