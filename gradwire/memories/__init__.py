"""Memories: what becomes of the part of a gradient that was not sent. One file per family."""

from gradwire.memories.base import RESIDUAL, Memory
from gradwire.memories.dgc import DGCMemory
from gradwire.memories.none import NoMemory
from gradwire.memories.residual import Residual

__all__ = ["RESIDUAL", "DGCMemory", "Memory", "NoMemory", "Residual"]
