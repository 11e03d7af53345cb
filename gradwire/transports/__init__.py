"""Transports: carriers of collectives."""

from gradwire.transports.card import Card
from gradwire.transports.mesh import Mesh
from gradwire.transports.played import Played
from gradwire.transports.process_group import ProcessGroup
from gradwire.transports.recording import SizeRecorder
from gradwire.transports.threads import Threads
from gradwire.transports.transport import Done, Pending, Transport

__all__ = [
    "Card",
    "Done",
    "Mesh",
    "Pending",
    "Played",
    "ProcessGroup",
    "SizeRecorder",
    "Threads",
    "Transport",
]
