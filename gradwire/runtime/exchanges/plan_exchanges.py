"""Which exchange each group of a plan has."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from gradwire.ops.workspace import Workspace
from gradwire.plans import Group, Plan
from gradwire.runtime.exchanges.exchange import GroupExchange, JobContext
from gradwire.runtime.exchanges.host_exchange import HostExchange
from gradwire.runtime.exchanges.replica_exchange import ReplicaExchange
from gradwire.runtime.exchanges.row_exchange import RowExchange
from gradwire.runtime.state.store import Store
from gradwire.slots import Slot
from gradwire.transports import Mesh


def exchanges_for(plan: Plan, store: Store, job: JobContext) -> list[GroupExchange]:
    """The exchanges of a plan's groups and of sparse gradients, for which the store is arranged."""
    dense = _dense(job.mesh)
    # where there is a memory, a mean of any group that is not finite makes the step bad for all
    job = replace(job, keeps_state=lambda: store.keeps_state)
    return [
        (dense if index < len(plan.groups) else RowExchange)(group, index, stored, job)
        for index, (group, stored) in enumerate(zip(store.with_sparse_group(plan).groups, store.groups, strict=True))
    ]


def exchange_of(group: Group, slots: Sequence[Slot], mesh: Mesh, device: torch.device) -> GroupExchange:
    """The exchange of a group by itself, with state of its own."""
    store = Store(slots, device)
    store.arrange(Plan((group,)))
    return _dense(mesh)(group, 0, store.groups[0], JobContext(mesh, 0, Workspace(device)))


def _dense(mesh: Mesh) -> type[HostExchange] | type[ReplicaExchange]:
    return HostExchange if mesh.host else ReplicaExchange
