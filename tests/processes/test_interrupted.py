"""Ctrl-C, which reaches all ranks in the middle of a step: a state can be saved, the last whole step's."""

import subprocess

from tests.support.ranks import meeting_place
from tests.support.warm import Forked


def test_the_state_after_ctrl_c_is_the_last_whole_steps():
    _store, (own, others) = meeting_place(2)
    argv = ["-m", "tests.processes.interrupted"]
    with (
        Forked(argv, env=own | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True) as first,
        Forked(argv, env=others | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True) as second,
    ):
        try:
            for rank in (first, second):
                assert rank.communicate(timeout=200)[0] == "interrupted after 5 steps; the same: True\n"
        finally:
            first.kill()
            second.kill()
