"""Runs `python ...`; the ranks that it starts, as torchrun and the lab start them, are forked from it:

Forked(["-m", "tests.support.program", "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"])
"""

import sys

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from tests.support.warm import execute, fork_server, forked_rank

if __name__ == "__main__":
    fork_server()
    SubprocessHandler._popen = forked_rank  # pyright: ignore
    execute(*sys.argv[1:])
