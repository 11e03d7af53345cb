"""Communicators: the collectives by which all ranks' payloads become one mean. One file per algorithm."""

from gradwire.communicators.all_gather import AllGather
from gradwire.communicators.all_reduce import AllReduce
from gradwire.communicators.communicator import Communicator
from gradwire.communicators.exclusive import Exclusive
from gradwire.communicators.global_top_k import GlobalTopK
from gradwire.communicators.leader_indices import LeaderIndices
from gradwire.communicators.ok_topk import OkTopk
from gradwire.communicators.scatter_reduce import ScatterReduce
from gradwire.communicators.split_gather import SplitGather
from gradwire.wire import Wire

__all__ = [
    "AllGather",
    "AllReduce",
    "Communicator",
    "Exclusive",
    "GlobalTopK",
    "LeaderIndices",
    "OkTopk",
    "ScatterReduce",
    "SplitGather",
    "Wire",
]
