"""Rounds of local steps: a fragment's pseudo-gradients are averaged, and its anchors take an outer step.

inner steps     every replica by itself
send            pseudo-gradients, anchor - parameter of one fragment, go to the runtime in a step of its groups
inner steps     `delay` of them, while it travels, and the next fragments behind it
receive         the mean is the gradient of the outer step; parameters move to the new anchors

With eager updates the outer step is taken at once, with the mean of the round before and this replica's own part of the
new one; its mean travels during the whole next round.

All ranks send and receive after the same inner steps, so in the same order.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.frontends.checkpoints.distributed_checkpoint import ShardSpec
from gradwire.frontends.front_end import FrontEnd
from gradwire.frontends.local_steps.fragments import Fragment, at_anchors, groups_of
from gradwire.frontends.local_steps.going_back import GoingBack, warn_of_dropped
from gradwire.frontends.local_steps.outer import OuterOptimizer, outer_facts, outer_of, outer_state, outer_step
from gradwire.frontends.local_steps.round_state import (
    Sent,
    check_groups,
    check_progress,
    copies,
    copy_by_name,
    eager_state,
    load_fragments,
    sent_state,
)
from gradwire.frontends.local_steps.schedule import Schedule
from gradwire.frontends.model_replica import ModelReplica
from gradwire.frontends.paused import Accumulated, paused
from gradwire.runtime.runtime import Runtime

_log = logging.getLogger("gradwire")


class Rounds(FrontEnd):
    """The outer part of local steps."""

    step: int
    """Inner steps so far, those before a checkpoint was loaded included."""
    taken: int
    """Inner steps since this was made."""
    detached: bool
    """There will be no more rounds."""
    under_way: dict[int, Sent]
    """The fragments that were sent and not received, by number."""

    def __init__(
        self,
        runtime: Runtime,
        fragments: Sequence[Fragment],
        inner: Optimizer,
        outer: OuterOptimizer,
        schedule: Schedule,
        replica: ModelReplica,
    ) -> None:
        self.runtime = runtime
        self.fragments = fragments
        self.schedule = schedule
        self.inner = inner
        # one outer optimizer for the anchors of all fragments
        self.outer = outer(list(self.anchors.values()))
        parts = str([[*fragment.parameters] for fragment in fragments])
        with runtime.between_steps("LocalSteps()", fragments=parts, **outer_facts(self.outer)):
            pass
        self._local = replica.local
        self._undo = replica.isolate(runtime)
        self._trained, self._all_of = replica.trained, replica.all_of
        self._going_back = GoingBack(replica, inner, replica.all_of)
        # the number of the inner step, and the fragments whose reductions are under way
        self.step = 0
        self.taken = 0
        self.detached = False
        self.under_way = {}
        self._aside = replica.aside
        runtime.fix_addresses(True)

    @property
    def anchors(self) -> dict[str, Tensor]:
        """Those of all fragments."""
        return {name: anchor for fragment in self.fragments for name, anchor in fragment.anchors.items()}

    def accumulate(self) -> AbstractContextManager[None]:
        """An empty context: nothing is sent before a round ends."""
        return nullcontext()

    def paused(self) -> AbstractContextManager[None]:
        """A context whose backward passes' gradients are dropped."""
        return paused(self._trained.held().values(), Accumulated(), self._aside())

    def skip(self) -> None:
        """Raises ValueError: an inner step is a rank's own."""
        raise ValueError(
            "handle.skip() cannot take back local steps; to leave one out, call optimizer.skip() in place of "
            "optimizer.step()"
        )

    def join(self, parts: Sequence[Sequence[str]], local: Mapping[str, Tensor]) -> None:
        """Adds parameters to fragments, which were frozen so far, and so are equal on all replicas."""
        names = [name for part in parts for name in part]
        before = self.anchors.keys()
        # all ranks meet, and get a plan that has the new parameters
        self.runtime.follow(names)
        # fragments with the new parameters at their values, which are all replicas' own anchors
        self.fragments = [
            fragment.grown({name: local[name] for name in self.runtime.plan.names if name in part})
            for fragment, part in zip(self.fragments, parts, strict=True)
        ]
        # the outer optimizer steps the new anchors, too, with the learning rate that it has now
        new = [anchor for name, anchor in self.anchors.items() if name not in before]
        self.outer.param_groups[0]["params"] += new

    def placed(self) -> Mapping[str, ShardSpec]:
        """Raises ValueError: parameters, anchors and momentum belong to the state as well."""
        raise ValueError("local steps have more state than their memories; use stateful() of LocalSteps itself")

    def held(self) -> Mapping[str, Tensor]:
        """The shared parameters, and those of the inner optimizer that were frozen so far; this rank's own differ.
        Raises ValueError for eager updates, of which each replica has shared parameters of its own."""
        if self.schedule.eager and self.step:
            raise ValueError(
                "with eager=True every replica has shared parameters of its own; verify() has nothing to compare"
            )
        held = {name: tensor for name, tensor in self._local.items() if name in self._trained.held()}
        return {**held, **self.anchors} if self.step else held

    def healed(self, names: Collection[str]) -> None:
        """Sets this replica's parameters to the healed shared ones. Otherwise the error would count as a movement of
        this replica, and be part of the next mean."""
        for fragment in self.fragments if self.step else ():
            fragment.healed(names)

    @torch.no_grad()
    def take_loaded(self) -> None:
        """Makes the parameters the shared ones before the first step: weights may have been loaded into them."""
        if not self.step:
            copy_by_name(self.anchors, self._local)

    def unhook(self) -> None:
        """Ends the rounds. Returns when what is under way is reduced: other ranks may have yet to send their part."""
        self.detached = True
        for undo in self._undo:
            undo()
        if not self.runtime.closed:
            self.runtime.wait_for_means()

    def inner_step_done(self) -> None:
        """Receives and sends the fragments that are due now."""
        self.step += 1
        self.taken += 1
        # buffers may have been loaded since this was made
        if self.taken == 1:
            self._going_back.keep()
        # what was sent `delay` steps ago is due
        self._receive_if_due()
        # send the fragment whose turn it is
        fragment = self.schedule.due(self.step)
        if fragment is None:
            return
        if self.schedule.eager:
            self._step_and_send(fragment)
        else:
            self.fragments[fragment].measure()
            self._send(fragment)
            # with no delay its mean is due at once
            self._receive_if_due()

    def _receive_if_due(self) -> None:
        due = [index for index, sent in self.under_way.items() if self.step == sent.step + self.schedule.delay]
        for index in due:
            sent = self.under_way[index]
            # the training thread waits here, if the mean is not there yet
            self._wait(index)
            self._receive(self.fragments[index], sent)

    def _wait(self, index: int) -> None:
        """Returns when a fragment's mean is there; later ones go on."""
        if (sent := self.under_way.get(index)) and sent.fence:
            self.runtime.finish(sent.fence)
        self.under_way.pop(index, None)

    def _send(self, index: int) -> None:
        runtime, pseudo_gradients = self.runtime, self.fragments[index].pseudo_gradients
        # open a step of the fragment's groups; the worker sends it while training goes on
        groups = groups_of(runtime.plan, pseudo_gradients)
        own_finite = None if self.schedule.eager else self.fragments[index].are_finite()
        runtime.reduce(pseudo_gradients, groups, self.schedule.times_sent(self.step))
        self.under_way[index] = Sent(self.step, runtime.fence(), own_finite)

    def _step_and_send(self, index: int) -> None:
        """Takes an eager update of a fragment."""
        # the mean of the last round is in place
        self._wait(index)
        fragment = self.fragments[index]
        # gradients: the last mean, with this replica's new part in place of its old one
        gradients = fragment.exchange_own(1 / self.runtime.mesh.replica.world, self._all_of)
        if fragment.are_finite():
            self._going_back.keep()
        else:
            # this replica's own part; the others see it by the mean, a round later
            warn_of_dropped(self.step, own=True)
            self._going_back.go_back(self.fragments)
        # send the new pseudo-gradients, which travel for a round, and step at once, even where the job has failed
        try:
            self._send(index)
        except BaseException:
            fragment.lose()
            raise
        finally:
            outer_step(self.outer, fragment, gradients)
            fragment.merge(None)

    def _receive(self, fragment: Fragment, sent: Sent) -> None:
        # a mean that is not finite is so on all replicas, maybe on one shard alone; or the job failed, and raises here
        if not (finite := bool(fragment.are_finite())):
            self.runtime.check_whole()
        good, own_good = self._all_of(finite), self._all_of(sent.own_finite is None or bool(sent.own_finite))
        if good:
            # the outer step moves the anchors, parameters follow
            outer_step(self.outer, fragment, fragment.pseudo_gradients)
            fragment.merge(self.schedule.mix)
        else:
            warn_of_dropped(sent.step, own=not own_good)
        # a weight of 0 may have left this replica's numbers out
        if good and own_good:
            self._going_back.keep()
        else:
            self._going_back.go_back(self.fragments)

    def shared_parameters(self) -> AbstractContextManager[None]:
        """A context in which parameters are the anchors."""
        self.take_loaded()
        first = self.schedule.first_outer_step
        if 0 < self.step < first:
            _log.warning("no outer step yet: until inner step %d shared parameters are those of the beginning", first)
        return at_anchors(self.fragments)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state. Waits for the fragments under way, whose means are part of it."""
        return {**self.progress(), "memory": self.runtime.state_dict()}

    def progress(self) -> dict[str, Any]:
        """The state without memories; also of a job that has failed, whose lost fragments will be measured anew."""
        self.take_loaded()
        # all fragments under way must have their means, which are saved
        sent = {index: each.fence for index, each in self.under_way.items() if each.fence}
        lost = {index for index, fence in sent.items() if not self.runtime.wait_for_means(fence)}
        for index in lost:
            self.fragments[index].lose()
        outer = outer_state(self.outer, self.anchors)
        state: dict[str, Any] = {"step": self.step, "anchors": copies(self.anchors), **outer}
        if self.schedule.eager:
            state["eager"] = [eager_state(fragment) for fragment in self.fragments]
        else:
            state["under way"] = [
                sent_state(self.fragments[index], index, each.step)
                for index, each in self.under_way.items()
                if index not in lost
            ]
        return state

    def load_state_dict(self, state: Mapping[str, Any], inner: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned, and from a state of the inner optimizer. Raises ValueError, on all
        ranks, and nothing has changed, where one of them cannot."""
        self.runtime.load_state_dict(state.get("memory", {}), partial(self.facts, state, inner))
        self.resume(state, inner)

    def facts(self, progress: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, str]:
        """The parts of a `progress` that must be equal on all ranks. Raises ValueError where this cannot go on from it,
        or from the inner optimizer's state."""
        check_progress(progress, self.anchors, self.fragments, self.schedule)
        outer_of(progress, self.outer, self.anchors)
        check_groups(self.inner, inner)
        return {"the state's inner steps": str(progress["step"])}

    def resume(self, state: Mapping[str, Any], inner: dict[str, Any]) -> None:
        """Goes on from a `progress` and an inner optimizer's state that were checked."""
        # plain numbers and the optimizers
        self.step = state["step"]
        self.outer.load_state_dict(outer_of(state, self.outer, self.anchors))
        self.inner.load_state_dict(inner)
        # anchors; then what each schedule has under way
        copy_by_name(self.anchors, state["anchors"])
        sent_at = load_fragments(self.fragments, state)
        self.under_way = {index: Sent(step, None) for index, step in sent_at.items()}
