"""Gradwire under torchft, on a plain model: `Optimizer` in place of torchft's and of its DDP, `FaultTolerantLocalSteps`
in place of its DiLoCo and LocalSGD. Their quorums and votes are in `gradwire.integrations.quorum_exchange`."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from gradwire.communicators import Communicator
from gradwire.compressors import Compressor
from gradwire.frontends import Handle
from gradwire.frontends.front_end import FrontEnd
from gradwire.frontends.local_steps.fragments import Fragment, FragmentedModel
from gradwire.frontends.local_steps.going_back import GoingBack
from gradwire.frontends.local_steps.local_optimizer import DILOCO
from gradwire.frontends.local_steps.outer import OuterOptimizer, outer_facts, outer_of, outer_state, outer_step
from gradwire.frontends.local_steps.schedule import Schedule
from gradwire.frontends.null_job import NullFrontEnd
from gradwire.frontends.options.choices import Choices, StepChoices
from gradwire.frontends.options.given_rules import warn_of
from gradwire.frontends.options.keywords import Dense
from gradwire.frontends.options.parameters import check_decides, device_of
from gradwire.groups import Grouping
from gradwire.integrations.framework import check_unused
from gradwire.integrations.quorum_exchange import QuorumExchange
from gradwire.integrations.torchft_replica import ReplicaGradients, least, replica_of, thawed
from gradwire.memories import Memory
from gradwire.plans import Plan
from gradwire.runtime.failures.job_errors import PeerFailed
from gradwire.runtime.job_options import NO_NATIVE, JobOptions
from gradwire.runtime.runtime import Runtime
from gradwire.transports import Mesh

# by name, for it is not among what development needs
torchft: Any = import_module("torchft")


class Optimizer(torchft.Optimizer):
    """torchft's `Optimizer`, with the gradients of `model` compressed and averaged over the replicas of `manager`; the
    model is not to be wrapped in torchft's `DistributedDataParallel`. Where a replica has several ranks, `fully_shard`
    has wrapped the model on them: HSDP, of which FSDP does what is inside a replica. The `options` are those of
    `gradwire.attach` that say how gradients are reduced: memory, communicator, dense, groups, rules, controller.

    `handle` is that of the present quorum. Memories of replicas that stay are those after the last step that counts,
    whatever is lost; a new replica begins with empty ones, or with those of `state`: what `exchange_state()`
    gave on this rank after the step from which the manager goes on.

    Raises ValueError for what `attach` refuses, for a manager with `use_async_quorum`, with which replicas are not yet
    equal when the forward pass begins, or with spares, or with another process group than ProcessGroupGloo or
    ProcessGroupNCCL, for a replica of several ranks whose model is whole, and for another step's
    state; RuntimeError, from backward or `step`, for a parameter that was thawed since, or frozen, unless
    `find_unused_parameters`.
    """

    def __init__(
        self,
        manager: Any,
        optimizer: Any,
        model: nn.Module,
        compressor: Compressor | Plan | str,
        *,
        find_unused_parameters: bool = False,
        seed: int = 0,
        state: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_unused(options, ("elastic", "scaler", "transport"), "torchft's Optimizer")
        super().__init__(manager, optimizer)
        # elastic: steps wait for the vote, and lost replicas end the exchange, not the job
        self._choices = StepChoices.of(
            compressor, find_unused_parameters=find_unused_parameters, seed=seed, **{**options, "elastic": True}
        )
        self._choices.check()
        self._model, self._replica = model, replica_of(model, manager)
        check_decides(self._choices.controlled_by(), self._replica.planned)
        warn_of(self._choices.by_layer, self._replica.planned)
        self._find_unused = find_unused_parameters
        self._exchange = QuorumExchange(manager, self._make, partial(least, self._replica), state)
        self._front_end = self._new_front_end(1)

    @property
    def handle(self) -> Handle:
        """The handle of the exchange in the present quorum."""
        return self._exchange.handle

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begins a step with the replicas of the quorum."""
        self._exchange.begin()
        self._front_end.reduced = False
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """The wrapped optimizer's step, if the vote is for it."""
        self._front_end.check()
        if self._exchange.vote():
            self.optim.step(closure)

    def exchange_state(self) -> dict[str, Any]:
        """This replica's memories: gradients that the others have yet to get. Save it after a step, on every rank of
        every replica, beside the model, the inner optimizer and the manager's state."""
        return self._exchange.state()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only accumulate; the next one outside reduces the sum."""
        return self._front_end.accumulate()

    def _new_front_end(self, replicas: int) -> ReplicaGradients:
        return ReplicaGradients(self.manager.report_error, self._model, self._replica, replicas, self._find_unused)

    def _make(self, mesh: Mesh) -> tuple[Runtime, FrontEnd]:
        own = self._replica
        runtime = self._choices.runtime(
            "torchft's Optimizer", own.parameters, own.slots, mesh, planned=own.planned, others=own.others, voted=True
        )
        # with as many replicas as this quorum has
        self._front_end = self._new_front_end(mesh.ranks)
        self._front_end.hook_in(runtime)
        return runtime, self._front_end


class FaultTolerantLocalSteps(torchft.Optimizer):
    """`gradwire.LocalSteps` on the replicas of `manager`: each takes `inner_steps` steps by itself, then comes a round,
    with quorum and vote. One that does not count is dropped: parameters go back to what replicas share. Of the
    options of `gradwire.LocalSteps` it has memory, communicator, inner_steps, outer, dense, groups and seed; its own is
    `state`: what `exchange_state()` gave on this rank, where model and manager go on from.

    Without a state, the constructor waits for the others' next round and takes part in it with a pseudo-gradient of
    zero; then it begins with the shared parameters. So load weights before: later ones count as movement. Raises
    ValueError as `Optimizer` does.
    """

    def __init__(
        self,
        manager: Any,
        inner_optimizer: Any,
        model: nn.Module,
        compressor: Compressor | Plan | str | None = None,
        *,
        memory: Memory | None = None,
        communicator: Communicator | None = None,
        inner_steps: int = 500,
        outer: OuterOptimizer = DILOCO,
        dense: Dense | None = None,
        groups: Grouping | None = None,
        seed: int = 0,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(manager, inner_optimizer)
        choices = Choices.of(compressor, memory=memory, communicator=communicator, dense=dense, groups=groups)
        choices.check()
        self._replica = own = replica_of(model, manager)
        self._going_back = GoingBack(own, inner_optimizer)
        # one fragment: all of the model; its plan is made anew for as many replicas as a quorum has
        parts = FragmentedModel(model, own, 1, choices.plan(own.parameters, lambda: self._replicas))
        parts.cut()
        self._parts = parts
        plan = self._plan(1)
        if plan.native:
            raise ValueError(NO_NATIVE)
        parts.check_fits(plan)
        (self._fragment,) = parts.fragments(plan, Schedule(inner_steps, 1))
        self.outer = outer(list(self._fragment.anchors.values()))
        facts = {
            "front end": "torchft's local steps", "inner_steps": str(inner_steps), **outer_facts(self.outer),
        }  # fmt: skip
        self._settings = JobOptions(
            seed=seed, others=own.others, facts=facts, planned=own.planned, elastic=True, voted=True,
            fits=parts.check_fits, rounds=True,
        )  # fmt: skip
        self._step, self._inner_steps = 0, inner_steps
        has = ("anchors", "outer", "inner steps")
        self._exchange = QuorumExchange(manager, self._make, partial(least, own), state, has)
        manager.register_state_dict_fn("gradwire's local steps", self._heal, self._shared)
        # from a checkpoint, or from the other replicas' next round
        if state:
            self._load_shared(state)
            self._step = state["inner steps"]
            return
        while not self._round():
            pass

    @property
    def handle(self) -> Handle:
        """The handle of the exchange in the present quorum."""
        return self._exchange.handle

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begins an inner step."""
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """An inner step; after the last one of a round, the outer one. Raises ValueError for a thawed parameter."""
        if why := thawed(self._replica, "FaultTolerantLocalSteps"):
            raise ValueError(why)
        self.optim.step(closure)
        self._step += 1
        if self._step % self._inner_steps == 0:
            self._round()

    def exchange_state(self) -> dict[str, Any]:
        """The shared state, and this replica's memories. Save it after any step, on
        every rank of every replica, beside the model, the inner optimizer's state and the manager's."""
        return {**deepcopy(self._shared()), "inner steps": self._step, **self._exchange.state()}

    def _round(self) -> bool:
        """Exchanges pseudo-gradients and votes; returns whether the round counts."""
        self._exchange.begin()
        if runtime := self._exchange.runtime:
            try:
                self._fragment.measure()
                runtime.reduce(self._fragment.pseudo_gradients)
                runtime.finish()
            except PeerFailed as error:
                self.manager.report_error(error)
            if not self._fragment.are_finite():
                # as all replicas see by this shard's mean
                self.manager.report_error(RuntimeError("a replica's pseudo-gradient is not finite"))
        # vote: outer step, or back to the shared parameters
        counts = self._exchange.vote()
        if counts:
            outer_step(self.outer, self._fragment, self._fragment.pseudo_gradients)
            self._fragment.reset()
            self._going_back.keep()
        else:
            self._going_back.go_back([self._fragment])
        return counts

    def _make(self, mesh: Mesh) -> tuple[Runtime, FrontEnd]:
        own, plan = self._replica, partial(self._plan, mesh.replica.world)
        runtime = Runtime(plan, own.slots, mesh, device_of(own.parameters), self._settings)
        return runtime, _Shared(self._fragment)

    def _plan(self, replicas: int) -> Plan:
        """What the options make for so many replicas."""
        self._replicas = replicas
        return self._parts.plan(list(self._replica.planned))

    def _shared(self) -> dict[str, Any]:
        anchors = self._fragment.anchors
        return {"anchors": anchors, **outer_state(self.outer, anchors)}

    def _heal(self, state: dict[str, Any]) -> None:
        """Takes over the shared state; this replica's pseudo-gradient is dropped."""
        self._load_shared(state)
        self._fragment.reset()

    def _load_shared(self, state: Mapping[str, Any]) -> None:
        anchors = self._fragment.anchors
        # check first, so that nothing is half loaded
        if {name: t.shape for name, t in state["anchors"].items()} != {name: t.shape for name, t in anchors.items()}:
            raise ValueError("the state is that of another model, or of other shards; load this replica's own")
        outer = outer_of(state, self.outer, anchors)
        for name, anchor in anchors.items():
            anchor.copy_(state["anchors"][name])
        self.outer.load_state_dict(outer)


class _Shared(NullFrontEnd):
    """Front end whose shared tensors are the anchors of local steps."""

    def __init__(self, fragment: Fragment) -> None:
        self._fragment = fragment

    def held(self) -> Mapping[str, Tensor]:
        return self._fragment.anchors

    def healed(self, names: Collection[str]) -> None:
        self._fragment.healed(names)
