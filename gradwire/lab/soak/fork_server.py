"""Fork server: a process that has loaded torch and forks itself for each rank."""

import os
import signal
import socket
import traceback
from collections.abc import Callable

from gradwire.lab.network.nsenter import die_with


def serve(rank: Callable[[], None]) -> None:
    """Runs `rank` in a new process whenever two pipes come through the socket that is this process's standard input:
    they are that one's standard input and output. Ends when the other end of the socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    asked, own = socket.socket(fileno=os.dup(0)), os.getpid()
    asked.send(b"ready")
    while True:
        line, pipes, *_ = socket.recv_fds(asked, 16, 2)
        if not line:
            return
        # the parent answers with the child's number, the child becomes a rank
        if child := os.fork():
            asked.send(str(child).encode())
        else:
            asked.close()
            _become(rank, pipes, own)
        for pipe in pipes:
            os.close(pipe)


def _become(rank: Callable[[], None], pipes: list[int], parent: int) -> None:
    """Runs `rank` in this new process; does not return."""
    die_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # orders on standard input, reports on standard output
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    try:
        rank()
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)
