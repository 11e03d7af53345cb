"""The front end for slow links: every replica takes local steps, and their pseudo-gradients are averaged in rounds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import isclass
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from gradwire.compressors import Compressor
from gradwire.frontends.checkpoints.distributed_checkpoint_rounds import DistributedRounds, rounds_in
from gradwire.frontends.handle import Handle
from gradwire.frontends.local_steps.fragments import FragmentedModel, Fragments
from gradwire.frontends.local_steps.outer import OuterOptimizer
from gradwire.frontends.local_steps.rounds import Rounds
from gradwire.frontends.local_steps.schedule import Schedule
from gradwire.frontends.model_replica import replica_of
from gradwire.frontends.options.choices import Choices
from gradwire.frontends.options.given_rules import facts_of, warn_of
from gradwire.frontends.options.keywords import PlanOptions
from gradwire.frontends.options.parameters import device_of
from gradwire.frontends.options.weighted import check_weighted, weight_function
from gradwire.frontends.owners import check_free, claim, held_by
from gradwire.frontends.shards.sharded_models import reshard
from gradwire.frontends.trained import add_to, check_held
from gradwire.frontends.updates import warn_of_momentum
from gradwire.frontends.values import share_values, values_of
from gradwire.frontends.wrapper import Wrapper
from gradwire.options import Options, called_as, one_line
from gradwire.plans import Plan
from gradwire.runtime.job_options import JobOptions
from gradwire.runtime.replicas import differences
from gradwire.runtime.runtime import Runtime
from gradwire.torch_private.compiled import uncompiled
from gradwire.torch_private.fully_shard import is_fsdp


@dataclass(frozen=True)
class Outer(Options):
    """The outer optimizer of DiLoCo: SGD with Nesterov's momentum on the mean pseudo-gradients. With `lr` 1
    and `momentum` 0 the replicas' parameters are averaged, as in local SGD (Stich, ICLR 2019,
    https://arxiv.org/abs/1805.09767). Raises ValueError for numbers that make no step."""

    lr: float = 0.7
    """Of the step that the shared parameters take."""
    momentum: float = 0.9
    """Nesterov's, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr <= 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"lr={self.lr} and momentum={self.momentum} are no outer step; use lr=0.7, momentum=0.9")

    def __call__(self, anchors: list[Tensor]) -> Optimizer:
        return torch.optim.SGD(anchors, self.lr, self.momentum, nesterov=self.momentum > 0)


KIND = "LocalSteps"
OWN = ("inner_steps", "outer", "fragments", "delay", "mix", "eager", "mesh", "process_group")
"""Options of local steps alone."""
SHARDED = "call fully_shard(model) as well, and pass gw.LocalSteps(optimizer, model, mesh=mesh)"
DILOCO = Outer()


class LocalSteps(Wrapper):
    """An optimizer of which every replica takes `inner_steps` steps by itself. Its pseudo-gradients, by how much it has
    moved in them, are then compressed and averaged as gradients are, for a step of an `outer` optimizer.

    By default this is DiLoCo (Douillard et al., 2023, https://arxiv.org/abs/2311.08105). With `fragments`, parts of the
    model take turns; a mean is used `delay` inner steps later, while these go on; parameters then become mix·own +
    (1 - mix)·shared: Streaming DiLoCo (Douillard et al., 2025, https://arxiv.org/abs/2501.18512). Without `mix` they
    keep their steps since they were sent. With `eager`, a replica takes its outer step at once, with its own part of
    the new mean and all others' of the one before, and a mean may travel for a whole round (Kale et al., 2025,
    https://arxiv.org/abs/2502.12996); shared parameters then differ by the means under way.
    With `ChunkTopK(64, of=4096, bits=2)`, `Residual(decay=0.95)` and `Outer(1.0, momentum=0)`:
    SparseLoCo (Sarfi et al., 2025, https://arxiv.org/abs/2508.15706).

    Compressor and options are as in `gradwire.attach`: memory, communicator, dense, groups, rules, transport,
    seed and weight, which is asked when a fragment is sent.
    `process_group` has the replicas, by default all ranks.
    With FSDP2, `mesh` is as in `attach` too: its first dimension counts replicas, which ranks along the others hold
    together. Parameters and buffers are the first replica's from the start; buffers are not averaged. A round in which
    a replica's numbers are not finite is dropped: all replicas go back to the shared parameters.

    Raises ValueError, on all ranks, for what `attach` refuses, for fragments that are not the model, for fewer
    inner steps than fragments, and for an optimizer of other parameters than the model's.
    """

    argument = "inner_optimizer"
    _step_supports_amp_scaling = True  # GradScaler calls `step` also where gradients are not finite, as of one replica

    @called_as("gw.LocalSteps(optimizer, model, gw.Quantized(4), inner_steps=30)")
    def __init__(
        self,
        inner_optimizer: Optimizer,
        model: nn.Module,
        compressor: Compressor | Plan | str | None = None,
        *,
        inner_steps: int = 500,
        outer: OuterOptimizer = DILOCO,
        fragments: Fragments = 1,
        delay: int = 0,
        mix: float | None = None,
        eager: bool = False,
        mesh: DeviceMesh | None = None,
        process_group: dist.ProcessGroup | None = None,
        **options: Unpack[PlanOptions],
    ) -> None:
        choices = Choices.of(compressor, OWN, **options)
        choices.check()
        if eager and choices.weight is not None:
            raise ValueError(
                "eager=True replaces 1 / replicas of the last mean by this replica's own; leave weight out"
            )
        model = uncompiled(model)
        self.check(inner_optimizer, model, process_group, "" if is_fsdp(model) else SHARDED)
        if not callable(outer) or (isclass(outer) and not issubclass(outer, Optimizer)):
            raise ValueError(f"outer={one_line(outer)} makes no optimizer; pass outer=gw.Outer(lr=0.7), or a function")
        # the replica, and what this rank can refuse by itself
        replica, values = replica_of(model, mesh, process_group, inner_optimizer), values_of(model)
        check_free(replica.trained.held())
        warn_of(choices.by_layer, replica.planned)
        schedule_of = partial(Schedule, inner_steps, delay=delay, mix=mix, eager=eager)
        self._model, self._replica = model, replica
        planned = choices.plan(replica.parameters, lambda: self._ranks)
        self._fragments = parts = FragmentedModel(model, replica, fragments, planned)

        def plan() -> Plan:
            # on all ranks together: what one of them refuses, all refuse
            check_held(inner_optimizer, model)
            parts.cut()
            schedule_of(len(parts.names))
            return parts.plan(list(replica.planned))

        # the ranks meet over the store: they make the same plan, or all of them raise
        runtime = self._open(choices, plan, values, f"{inner_steps}, {delay}, {mix} and {eager}")
        self._rounds = rounds = self._rounds_of(runtime, inner_optimizer, outer, schedule_of(len(parts.names)))
        self.handle = Handle(runtime, rounds, waits=not (delay or eager), inner_steps=lambda: rounds.taken)
        claim(replica.trained.held().values(), runtime, KIND)
        self._wrap(inner_optimizer)

    def _open(self, choices: Choices, plan: Callable[[], Plan], values: dict[str, str], schedule: str) -> Runtime:
        """The runtime; ranks compare the descriptions of the model's `values`, by name."""
        replica, parts = self._replica, self._fragments
        trained = replica.trained.parameters()

        def fits(made: Plan) -> None:
            parts.check_fits(made)
            check_weighted(made, choices.weight)

        axes = choices.mesh(replica.axes, device := device_of(trained))
        self._ranks = axes.replica.world
        return Runtime(plan, replica.slots, axes, device, JobOptions(
            seed=choices.seed, others=replica.others, owns_mesh=choices.owns_mesh, planned=replica.planned,
            values=values, trained=trained.keys(), plan_for=parts.plan, rounds=True,
            fits=fits, weight=weight_function(choices.weight),
            facts={
                "front end": "LocalSteps", "inner_steps, delay, mix and eager": schedule,
                "weight": "no" if choices.weight is None else "yes",
                **facts_of(choices.by_layer),
            },
        ))  # fmt: skip

    def _rounds_of(self, runtime: Runtime, inner: Optimizer, outer: OuterOptimizer, schedule: Schedule) -> Rounds:
        """Rounds over the fragments of the runtime's plan, with the first replica's values, one outer optimizer on all
        ranks. Closes the runtime where that fails."""
        with ExitStack() as on_error:
            on_error.callback(runtime.close)
            share_values(self._model, runtime.mesh, device_of(self._replica.trained.parameters()))
            fragments = self._fragments.fragments(runtime.plan, schedule)
            rounds = Rounds(runtime, fragments, inner, outer, schedule, self._replica)
            warn_of_momentum(runtime.plan, rounds.anchors, rounds.outer)
            on_error.pop_all()
        return rounds

    @property
    def outer(self) -> Optimizer:
        """The optimizer of the shared parameters, for schedules of its learning rate."""
        return self._rounds.outer

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """An inner step; at the end of a round, the outer one as well. Raises RuntimeError where `handle` was
        detached."""
        self._check_attached()
        # the inner step, of a model that may have thawed parameters since the last one
        self._join()
        self._begin()
        loss = self._wrapped.step(closure) if self._unscaled() else None
        # a round may end here: receive what is due, send what is next
        self._rounds.inner_step_done()
        return loss

    def skip(self) -> None:
        """In place of `step()`, an inner step in which this replica does not move; rounds stay where they are.
        Raises RuntimeError where `handle` was detached."""
        self._check_attached()
        self._join()
        self._begin()
        self._rounds.inner_step_done()

    def _unscaled(self) -> bool:
        """Takes the factor of the GradScaler that calls `step` out of gradients; returns whether they are finite."""
        # torch sets both for this call: no factor where `unscale_` has taken it out, 1 where gradients are not finite
        scale, found_inf = (vars(self).get(name) for name in ("grad_scale", "found_inf"))
        if scale is not None:
            factor = scale.item()
            for parameter in held_by(self._wrapped):
                if parameter.grad is not None:
                    parameter.grad.div_(factor)
        return found_inf is None or not found_inf.item()

    def _check_attached(self) -> None:
        if self._rounds.detached:
            raise RuntimeError("detach() ended the rounds; step the inner optimizer, or wrap it anew")

    def _join(self) -> None:
        """Adds parameters that were thawed since the last step to the rounds, before they move. Raises RuntimeError
        where the inner optimizer holds one that the model had not."""
        self._replica.trained.check_known()
        if self._replica.moved():
            self._rounds.runtime.refuse(
                "the model was moved after LocalSteps() took its shards, by to(), cpu() or to_empty(); call "
                "handle.detach() before that, and wrap the optimizer anew after it"
            )
        if self._fragments.grow(self._replica.trained.now_or_fail(self._rounds.runtime)):
            self._rounds.join(self._fragments.names, self._replica.local)

    def _begin(self) -> None:
        """Before the first step, begins with the weights that were loaded since this was made. Raises RuntimeError, on
        all ranks, where replicas have others."""
        rounds = self._rounds
        if rounds.step:
            return
        with rounds.runtime.between_steps("the first step()") as together:
            if found := together(partial(differences, rounds.held()), []):
                raise RuntimeError(f"replicas differ: {found[0]}; load the same weights on all ranks before step()")
        rounds.take_loaded()

    @contextmanager
    def shared_parameters(self) -> Iterator[None]:
        """A context in which the model has the parameters that all replicas share, those of the last outer step, to
        evaluate or export it. This rank's own come back afterwards."""
        # the shards are the parameters; replaced by the shared ones inside
        reshard(self._model)
        with self._rounds.shared_parameters():
            try:
                yield
            finally:
                # FSDP may have gathered parameters inside
                reshard(self._model)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters of the model, which take part in rounds from now on. Raises ValueError for others, and for
        those that are averaged already."""
        if self.inner is None:  # while this object is made
            super().add_param_group(param_group)
            return
        claim(add_to(self.inner, param_group, self._replica.trained), self._rounds.runtime, KIND)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state, and under "local_steps" the rest, what is under way included: it goes on from
        there. Save it on every rank, with the model, for between two rounds both are this rank's own."""
        return {**self._wrapped.state_dict(), "local_steps": self._rounds.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` returned on this rank; all ranks do this together, and load the model as well.

        Raises ValueError, on all ranks, for another model's state."""
        # what was thawed since the last step takes part in the state's rounds
        self._join()
        inner = dict(state_dict)
        self._rounds.load_state_dict(inner.pop("local_steps", {}), inner)

    def stateful(self, saved: str | Path | StorageReader | None = None, key: str | None = None) -> DistributedRounds:
        """The state of all replicas with their parameters, for torch.distributed.checkpoint, which would keep one
        rank's `state_dict`: `dcp.save({"local_steps": optimizer.stateful()}, ...)`, and with the checkpoint's path
        or reader `dcp.load({"local_steps": optimizer.stateful(path)}, checkpoint_id=path)`. On as many replicas as
        before the training goes on bit for bit; on any other number, what memories keep adds up to the same. Of several
        in one checkpoint it is the one that was saved under `key`.

        Raises ValueError, on all ranks, for another model's state, where the checkpoint has none, for a key without
        `saved`, and with `eager`, where nothing is shared."""
        if saved is not None:
            self._join()
        return DistributedRounds(self._rounds, self._replica, rounds_in(saved, key))
