"""The connections of a group, which end by name."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gradwire.transports import connections
from gradwire.transports.connections import Connections

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def connected() -> Iterator[Callable[[], Pair]]:
    """Makes two sockets that talk to each other."""
    with ExitStack() as open_until_the_end:

        def make() -> Pair:
            one, other = map(open_until_the_end.enter_context, socket.socketpair())
            return one, other

        yield make


def talk(one: socket.socket, other: socket.socket) -> bool:
    one.send(b"x")
    return other.recv(1) == b"x"


def test_those_of_the_group_are_shut_down_and_no_others(connected: Callable[[], Pair]):
    before = connected()
    with Connections() as made:
        own = connected()
    after = connected()
    made.shut_down()
    assert own[0].recv(1) == b""
    assert talk(*before)
    assert talk(*after)


def test_the_number_of_one_that_was_closed_meanwhile_may_be_anothers(
    connected: Callable[[], Pair], monkeypatch: pytest.MonkeyPatch
):
    with Connections() as made:
        own = connected()
    others, seen = connected(), list(connections._sockets())
    for mine, other in zip(own, others, strict=True):
        os.dup2(other.fileno(), mine.fileno())
    monkeypatch.setattr(connections, "_sockets", lambda: iter(seen))
    made.shut_down()
    assert talk(*others)


def test_what_a_server_that_was_there_before_accepts_is_not_the_groups():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        with Connections() as made:  # as rank 0, whose process has the store, makes a group, and another rank connects
            accepted, _ = server.accept()
        with accepted:
            made.shut_down()
            assert talk(client, accepted)


def test_what_was_served_before_an_earlier_group_does_not_count():
    made = Connections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with made:
            pass
    with made:
        server = socket.create_server(("127.0.0.1", port))
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with server, client, accepted:
        made.shut_down()
        assert accepted.recv(1) == b""
