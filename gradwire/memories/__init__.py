"""Memories: error feedback, the state that keeps what was not sent of a gradient. One file per algorithm."""

from gradwire.memories.dgc import DGCMemory
from gradwire.memories.memory import RESIDUAL, Memory
from gradwire.memories.none import NoMemory
from gradwire.memories.residual import Residual

__all__ = ["RESIDUAL", "DGCMemory", "Memory", "NoMemory", "Residual"]
