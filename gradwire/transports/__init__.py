"""Transports: who carries bytes."""

from gradwire.transports.base import Done, Pending, Store, Transport
from gradwire.transports.mesh import Mesh
from gradwire.transports.process_group import ProcessGroup
from gradwire.transports.recording import Recording
from gradwire.transports.threads import Threads

__all__ = ["Done", "Mesh", "Pending", "ProcessGroup", "Recording", "Store", "Threads", "Transport"]
