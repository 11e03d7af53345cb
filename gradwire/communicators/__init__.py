"""Communicators: how the payloads of all ranks become one mean."""

from gradwire.communicators.all_gather import AllGather
from gradwire.communicators.all_reduce import AllReduce
from gradwire.communicators.base import Communicator
from gradwire.communicators.scatter_reduce import ScatterReduce

__all__ = ["AllGather", "AllReduce", "Communicator", "ScatterReduce"]
