"""Ctrl-C, which reaches all ranks in the middle of a step: a state can be saved, the last whole step's."""

import subprocess

from tests.support.ranks import free_port
from tests.support.warm import Forked


def test_the_state_after_ctrl_c_is_the_last_whole_steps():
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    argv = ["-m", "tests.processes.interrupted"]
    with (
        Forked(argv, env=shared | {"RANK": "0"}, stdout=subprocess.PIPE, text=True) as first,
        Forked(argv, env=shared | {"RANK": "1"}, stdout=subprocess.PIPE, text=True) as second,
    ):
        try:
            for rank in (first, second):
                assert rank.communicate(timeout=200)[0] == "interrupted after 5 steps; the same: True\n"
        finally:
            first.kill()
            second.kill()
