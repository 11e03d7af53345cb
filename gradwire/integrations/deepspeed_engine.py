"""DeepSpeed's engine: all attributes of it that Gradwire uses, most of which its documentation does not promise."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.frontends.owners import held_by
from gradwire.frontends.trained import on_one_device
from gradwire.integrations.framework import Replacements, check_fits, check_has
from gradwire.options import check_type
from gradwire.torch_private.process_groups import world_size

# by name, for it is not among what development needs
deepspeed: Any = import_module("deepspeed")
TRIED = "0.19.8"
OF_ENGINE = (
    "allreduce_gradients", "basic_optimizer", "buffered_allreduce_fallback", "coalesce_grad_reduction", "dp_world_size",
    "get_data_types", "gradient_average", "has_moe_layers", "inside_no_sync_ctxt", "is_deepcompile_enabled",
    "is_gradient_accumulation_boundary", "load_checkpoint", "no_sync", "pipeline_parallelism", "save_checkpoint",
    "torch_autocast_dtype", "zenflow", "zero_optimization", "zero_optimization_stage", "zero_overlap_comm",
)  # fmt: skip
OF_ZERO = (
    "average_tensor", "bit16_groups", "buffered_reduce_fallback", "dtype", "loss_scale", "use_grad_accum_attribute",
)  # fmt: skip
_check_has = partial(check_has, framework=f"DeepSpeed {deepspeed.__version__}", tried=TRIED)
OWN_COMPRESSION = {"OnebitAdam", "OnebitLamb", "ZeroOneAdam"}
"""DeepSpeed's optimizers that exchange compressed momenta in place of gradients."""


class TrainingEngine:
    """A DeepSpeed engine whose parameters and gradients are whole on every rank: without ZeRO, or with its stage 1.

    Raises ValueError, naming what to do, for any other, and for a DeepSpeed that lacks what is used here."""

    def __init__(self, engine: Any) -> None:
        check_type("engine", engine, (deepspeed.DeepSpeedEngine,), "deepspeed.initialize(...)[0]", optional=False)
        _check_has(engine, OF_ENGINE)
        check_fits(_refusals(engine))
        if engine.zero_optimization():
            _check_has(engine.optimizer, OF_ZERO)
            # by what ZeRO has made of the parameters
            own, configured = engine.optimizer.dtype, engine.get_data_types()[0]
            refusal = (
                f"parameters are {own}, the configuration says {configured}, and ZeRO then sums gradients elsewhere "
                'than in p.grad; make both one: set "bf16": {"enabled": true}, say'
            )
            check_fits({refusal: engine.optimizer.use_grad_accum_attribute})
        self._engine = engine
        self._replacements = Replacements()
        # of its parameters ZeRO steps those that were trained when it was made
        self._fits = on_one_device(engine.module)
        groups = engine.optimizer.bit16_groups if engine.zero_optimization() else [engine.module.parameters()]
        self._held = {id(parameter) for group in groups for parameter in group}

    @property
    def module(self) -> nn.Module:
        """The model."""
        return self._engine.module

    @property
    def accumulates(self) -> bool:
        """Whether a backward pass that is under way only accumulates gradients."""
        return self._engine.inside_no_sync_ctxt or not self._engine.is_gradient_accumulation_boundary()

    def no_sync(self) -> AbstractContextManager[None]:
        """A context in which backward passes only accumulate."""
        return self._engine.no_sync()

    def scale(self) -> float:
        """The factor that losses are multiplied by."""
        return float(self._engine.optimizer.loss_scale) if self._engine.zero_optimization() else 1.0

    def check(self, name: str, parameter: nn.Parameter) -> None:
        """Raises ValueError, naming the parameter, for one that cannot be averaged, or that ZeRO does not step."""
        self._fits(name, parameter)
        if id(parameter) not in self._held:
            raise ValueError(
                f"parameter {name!r} was thawed after deepspeed.initialize(), and ZeRO does not step it; make the "
                "engine anew"
            )

    def stepped(self) -> Iterable[Tensor]:
        """The tensors that the innermost optimizer steps: under ZeRO, this rank's partitions."""
        return held_by(self._engine.optimizer)

    def reduce_by(self, reduce: Callable[[], None]) -> None:
        """Has `reduce` put means into `p.grad`, where the engine would sum it over the ranks. ZeRO then takes this
        rank's partition of them on its usual way, which sums nothing any more."""
        engine = self._engine
        rest, coalesce = engine.allreduce_gradients, engine.coalesce_grad_reduction

        def allreduce_gradients(*arguments: Any, **options: Any) -> None:
            if engine.is_gradient_accumulation_boundary():
                reduce()
            rest(*arguments, **options)

        @contextmanager
        def coalesce_grad_reduction() -> Iterator[None]:
            # whose end is ZeRO's, with no call of the engine's
            with coalesce():
                yield
                reduce()

        self._replacements.replace(engine, "allreduce_gradients", allreduce_gradients)
        self._replacements.replace(engine, "coalesce_grad_reduction", coalesce_grad_reduction)
        self._replacements.replace(engine, "buffered_allreduce_fallback", _no_sum)
        if engine.zero_optimization():
            self._replacements.replace(engine.optimizer, "average_tensor", _no_sum)
            self._replacements.replace(engine.optimizer, "buffered_reduce_fallback", _no_sum)

    def save_with(
        self, key: str, state: Callable[[], Any], found: Callable[[bool], None], load: Callable[[Any], None]
    ) -> None:
        """Adds `state()` to the client state of every checkpoint. When one is loaded, first calls `found` with whether
        there is a checkpoint; then, if the optimizer's state is loaded too, `load` with what `state()` was, or None if
        the checkpoint lacks it. All ranks call these together."""
        # the client state travels with the checkpoint
        save_rest, load_rest = self._engine.save_checkpoint, self._engine.load_checkpoint
        asks = signature(load_rest)

        # callers look at signatures, as transformers does
        @wraps(save_rest)
        def save_checkpoint(
            save_dir: str, tag: Any = None, client_state: Any = None, *rest: Any, **options: Any
        ) -> Any:
            return save_rest(save_dir, tag, {**(client_state or {}), key: state()}, *rest, **options)

        @wraps(load_rest)
        def load_checkpoint(*arguments: Any, **options: Any) -> tuple[str | None, Any]:
            asked = asks.bind_partial(*arguments, **options).arguments
            path, client_state = load_rest(*arguments, **options)
            found(path is not None)
            if path is not None:
                kept = client_state.pop(key, None)
                # the state of another training, of which only the model is wanted
                if asked.get("load_optimizer_states", True) and not asked.get("load_module_only"):
                    load(kept)
            return path, client_state

        self._replacements.replace(self._engine, "save_checkpoint", save_checkpoint)
        self._replacements.replace(self._engine, "load_checkpoint", load_checkpoint)

    def restore(self) -> None:
        """Undoes what was replaced: the engine sums by itself again."""
        self._replacements.undo()


def _no_sum(*arguments: Any, **options: Any) -> None:
    """Leaves gradients as they are."""


def _refusals(engine: Any) -> Mapping[str, bool]:
    """Error messages for engines whose gradients Gradwire cannot reduce, and whether each applies to this one."""
    # how the engine keeps gradients, and which ranks hold the model
    stage, (kind, accumulated) = int(engine.zero_optimization_stage()), engine.get_data_types()
    replicas = engine.dp_world_size == world_size() and not (engine.pipeline_parallelism or engine.has_moe_layers)
    optimizer, half = type(engine.basic_optimizer).__name__, torch.float16
    return {
        f'ZeRO {stage} keeps no whole gradients; set "stage": 1, or use fully_shard(model) and gw.attach': stage > 1,
        "the engine has no optimizer; give deepspeed.initialize(...) one": engine.optimizer is None,
        "every rank must hold the whole model: no pipeline, tensor, sequence or expert parallelism": not replicas,
        'ZeRO takes gradients before they are means; set "overlap_comm": false': bool(
            stage and engine.zero_overlap_comm()
        ),
        f'p.grad is {kind}, its sum {accumulated}, elsewhere; leave out "grad_accum_dtype"': kind != accumulated,
        'the loss scale of "fp16" is known under ZeRO alone; set "stage": 1': stage == 0 and kind == half,
        'the loss scale of "torch_autocast" is not known; use bfloat16': engine.torch_autocast_dtype() == half,
        'Gradwire averages over the ranks; set "gradient_allreduce_op": "mean"': not engine.gradient_average,
        "ZenFlow reduces by itself; leave it out": engine.zenflow,
        "DeepCompile reduces by itself; leave it out": engine.is_deepcompile_enabled(),
        f"{optimizer} compresses by itself; use another optimizer, such as AdamW": optimizer in OWN_COMPRESSION,
    }
