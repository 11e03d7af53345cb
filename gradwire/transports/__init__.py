"""Transports: carriers of collectives."""

from gradwire.transports.mesh import Mesh
from gradwire.transports.process_group import ProcessGroup
from gradwire.transports.recording import Recording
from gradwire.transports.threads import Threads
from gradwire.transports.transport import Done, KeyValueStore, Pending, Transport

__all__ = ["Done", "KeyValueStore", "Mesh", "Pending", "ProcessGroup", "Recording", "Threads", "Transport"]
