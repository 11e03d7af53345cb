"""The connections of a gloo group, and how they end at once."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from gradwire.torch_private.process_groups import backend_of
from gradwire.transports import forked
from gradwire.transports.batch_threads import in_batch
from gradwire.transports.bounded_calls import on_thread

OPEN = Path("/proc/self/fd")
IP = socket.AF_INET, socket.AF_INET6


class Connections:
    """The connections that are made inside a `with`: those of the one group that is made there, and any that another
    thread opens then, but not those that an earlier server accepts, such as rank 0's store.

    gloo closes a group's connections when nothing refers to the group any more and its threads have ended, which may
    wait, up to the group's timeout, for ranks that wait for this one. Without /proc it stays like that.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._served: set[int] = set()

    def __enter__(self) -> "Connections":
        self._names, self._served = set(), set()
        # the sockets that are there before, and the ports that servers listen on
        for name, number in _sockets():
            self._names.add(name)
            with suppress(OSError), _duplicate(number) as each:
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    self._served |= _port(each)
        return self

    def __exit__(self, *error: object) -> None:
        before, self._names = self._names, set()
        # the new ones, except those that such a server has accepted
        for name, number in _sockets():
            if name not in before:
                with suppress(OSError), _duplicate(number) as each:
                    if not _port(each) & self._served:
                        self._names.add(name)

    def shut_down(self) -> None:
        """Shuts them down: messages under way end with an error on the other side, and mostly on this one."""
        for name, number in _sockets():
            # by name: a number may belong to another socket by now
            if name in self._names:
                with suppress(OSError), _duplicate(number) as connection:
                    # raises where it only listens: gloo's thread would not survive that
                    connection.getpeername()
                    if _name(connection.fileno()) == name:
                        # gloo may have closed it, and the number be another's
                        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def connections_of(like: Any) -> Iterator[Connections]:
    """The sockets of a group like this one that is made inside, whose threads are to wait for their turn. They are
    gloo's: those of an NCCL that connects at once, as with `device_id`, NCCL itself ends and schedules."""
    if backend_of(like, torch.device("cuda")) == "nccl" and like.bound_device_id is not None:
        yield Connections()
        return
    with Connections() as connections, in_batch():
        yield connections


def shut_down_to(port: int) -> None:
    """Shuts down the connections to a server's port: threads that wait for what it sends get an error."""
    for _, number in _sockets():
        with suppress(OSError), _duplicate(number) as connection:
            if connection.family in IP and connection.getpeername()[1] == port:
                connection.shutdown(socket.SHUT_RDWR)


def drop_groups(held: list[Any]) -> None:
    """Drops the last references to groups that were ended, without waiting. A gloo group's end waits for its threads,
    and these for messages under way, some of which only the timeout ends."""
    if not on_thread(held.clear):
        forked.keep_for_ever(held)  # the process ends, and closes what is left


def _sockets() -> Iterator[tuple[str, int]]:
    """The name of each socket of this process, which no other has or gets, and its file descriptor."""
    for entry in OPEN.iterdir() if OPEN.exists() else ():
        with suppress(OSError):  # it was closed meanwhile
            if (name := _name(int(entry.name))).startswith("socket:"):
                yield name, int(entry.name)


def _name(number: int) -> str:
    return os.readlink(OPEN / str(number))


def _port(connection: socket.socket) -> set[int]:
    """A connection's port on this side; none if it is not over IP."""
    return {connection.getsockname()[1]} if connection.family in IP else set()


def _duplicate(number: int) -> socket.socket:
    """A second descriptor of a socket. Raises OSError where it was closed meanwhile."""
    return socket.socket(fileno=os.dup(number))
