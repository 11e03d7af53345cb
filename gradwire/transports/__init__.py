"""Transports: who carries bytes."""

from gradwire.transports.base import Pending, Transport
from gradwire.transports.hierarchical import Hierarchical
from gradwire.transports.process_group import ProcessGroup
from gradwire.transports.recording import Recording
from gradwire.transports.threads import Threads

__all__ = ["Hierarchical", "Pending", "ProcessGroup", "Recording", "Threads", "Transport"]
