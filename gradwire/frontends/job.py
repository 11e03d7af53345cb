"""From what a user passes to a plan and a runtime: the same for all front ends."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.communicators import Communicator
from gradwire.compressors import FP32, Compressor
from gradwire.controllers import Controller
from gradwire.groups import Grouping
from gradwire.memories import Memory
from gradwire.notation import read
from gradwire.ops.host import number_in
from gradwire.ops.vectors import Share
from gradwire.plans import Group, Plan, uniform
from gradwire.runtime.runtime import Runtime
from gradwire.runtime.settings import Settings
from gradwire.slots import Slot
from gradwire.torch_private.autograd import scale_of
from gradwire.transports import Mesh, Transport
from gradwire.tuner import Auto, profiler_for

Dense = Callable[[str, nn.Parameter], bool]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The arguments of `attach` that say how gradients are reduced."""

    compressor: Compressor | Plan | None = None
    memory: Memory | None = None
    communicator: Communicator | None = None
    dense: Dense | None = None
    groups: Grouping | None = None
    candidates: Sequence[Compressor | Group] = ()
    fidelity: float | None = None
    controller: Controller | None = None
    elastic: bool = False

    @classmethod
    def of(cls, compressor: Compressor | Plan | str | None, **others: Any) -> "Choices":
        """These; a text says as much as `gradwire.notation` can. Raises ValueError where it cannot be read, and where
        something is said twice."""
        if not isinstance(compressor, str):
            return cls(compressor=compressor, **others)
        parts, groups = read(compressor)
        said = {name: part for name, part in {**parts._asdict(), "groups": groups}.items() if part is not None}
        if twice := [name for name in said if others.get(name) is not None]:
            raise ValueError(f"{compressor!r} says {said[twice[0]]}, and {twice[0]}= something else; keep one of them")
        return cls(**others | said)

    def check(self) -> None:
        """Raises ValueError, naming the call that works, for what is none of what was asked for, and for arguments that
        contradict each other."""
        check_type("compressor", self.compressor, (Compressor, Plan), "gw.TopK(0.01)")
        check_type("memory", self.memory, (Memory,), "gw.Residual()")
        check_type("communicator", self.communicator, (Communicator,), "gw.AllGather()")
        check_type("controller", self.controller, (Controller,), "gw.GraVAC()")
        check_type("groups", self.groups, (Grouping,), "gw.groups.of(megabytes=25)")
        check_type("candidates", self.candidates, (list, tuple), "[gw.BF16(), gw.TopK(0.01)]")
        if self.dense is not None and not callable(self.dense):
            raise ValueError(f"dense={self.dense!r} is no function; pass e.g. dense=lambda name, parameter: True")
        for candidate in self.candidates:
            check_type("candidates", candidate, (Compressor, Group), "[gw.BF16(), gw.TopK(0.01)]")
        if self.compressor is None and self.controller:
            name = type(self.controller).__name__
            raise ValueError(f"{name} needs a compressor to start from; name one as well")
        if self.compressor is not None and self.candidates:
            raise ValueError("candidates are for the automatic plan; leave the compressor out, or name it alone")
        if self.compressor is not None and self.fidelity is not None:
            raise ValueError("fidelity bounds what the automatic plan may lose; leave the compressor out, or fidelity")
        if isinstance(self.compressor, Plan) and (self.memory or self.communicator or self.dense or self.groups):
            raise ValueError("a Plan says memory, communicator, groups and what is dense itself; pass the Plan alone")
        if self.elastic and self.compressor is None:
            raise ValueError("elastic=True cannot find a plan meanwhile; name a compressor, such as gw.TopK(0.01)")
        self.controlled_by()  # what Auto refuses is refused before anything is opened

    def controlled_by(self) -> Controller | None:
        """Who changes the plan while training: `Auto`, where no compressor is named."""
        return Auto(self.candidates, self.fidelity) if self.compressor is None else self.controller

    def plan(self, parameters: Mapping[str, nn.Parameter]) -> Callable[[list[Slot]], Plan]:
        """How slots, in the order in which they become ready, are planned."""
        compressor = FP32() if self.compressor is None else self.compressor
        if isinstance(compressor, Plan):
            return lambda slots: compressor
        is_dense = self.dense
        dense = None if is_dense is None else lambda slot: is_dense(slot.name, parameters[slot.name])
        return partial(_planned, compressor, self.memory, self.communicator, dense, self.groups)


def _planned(
    compressor: Compressor,
    memory: Memory | None,
    communicator: Communicator | None,
    dense: Callable[[Slot], bool] | None,
    groups: Grouping | None,
    slots: list[Slot],
) -> Plan:
    plan = uniform(slots, compressor, memory, communicator, dense)
    return groups.regroup(plan, slots, compressor) if groups else plan


def check_type(name: str, value: object, kinds: tuple[type, ...], example: str) -> None:
    """Raises ValueError, naming an argument that works, for one of another type than these; None passes."""
    if isinstance(value, type) and issubclass(value, kinds):
        raise ValueError(f"{name}={value.__name__} is a class; pass an object, such as {name}={example}")
    if value is not None and not isinstance(value, kinds):
        raise ValueError(f"{name}={value!r} is no {kinds[0].__name__}; pass one, such as {name}={example}")


def _needs_gradient(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def parameters_of(
    module: nn.Module, reduces: Callable[[nn.Parameter], bool] = _needs_gradient
) -> tuple[dict[str, nn.Parameter], set[str]]:
    """The parameters that are reduced, by name, and the names of the others, empty ones among them.

    Raises ValueError where there is none, and where they lie on several devices."""
    named = dict(module.named_parameters())
    reduced = {name: p for name, p in named.items() if reduces(p) and p.numel()}
    if not reduced:
        raise ValueError("the model has no parameter that needs a gradient, so there is nothing to reduce")
    places = {p.device: name for name, p in reduced.items()}
    if len(places) > 1:
        (one, other), *_ = zip(places.items(), list(places.items())[1:], strict=False)
        raise ValueError(
            f"parameter {one[1]!r} is on {one[0]} and {other[1]!r} on {other[0]}; give each rank one device"
        )
    return reduced, named.keys() - reduced.keys()


def slots_of(parameters: Mapping[str, Tensor]) -> list[Slot]:
    """A slot for each parameter, in the order in which backward is likely to come to them."""
    return [Slot.of(name, parameter) for name, parameter in parameters.items()][::-1]


def device_of(parameters: Mapping[str, nn.Parameter]) -> torch.device:
    """Where the parameters lie."""
    return next(iter(parameters.values())).device


def runtime_of(
    choices: Choices,
    parameters: Mapping[str, nn.Parameter],
    slots: Sequence[Slot],
    mesh: Mesh,
    *,
    planned: Sequence[Slot] | None = None,
    trained: Collection[str] | None = None,
    scaler: torch.amp.GradScaler | None,
    words: Mapping[str, str],
    **settings: Any,
) -> Runtime:
    """The runtime of a job that reduces every step. `planned` are the slots that plans are made for, where they are
    not those of this rank; `trained`, `words` and `settings` are as in `Settings`."""
    plan, whole = choices.plan(parameters), list(slots if planned is None else planned)
    first = [slot for slot in whole if trained is None or slot.name in trained]
    device = device_of({slot.name: parameters[slot.name] for slot in first})
    given = Settings(
        controller=choices.controlled_by(), profiler=profiler_for(whole, mesh, device),
        follow_order=None if isinstance(choices.compressor, Plan) or choices.elastic else plan,
        scale=scale_from(scaler), planned=planned, elastic=choices.elastic, trained=trained, plan_for=plan,
        words={**words, "scaler": "yes" if scaler else "no", "elastic": str(choices.elastic)}, **settings,
    )  # fmt: skip
    return Runtime(partial(plan, first), slots, mesh, device, given)


def scale_from(scaler: torch.amp.GradScaler | None) -> Callable[[], Share | None]:
    """What `scaler` multiplies losses by: a number on a CPU, a tensor () elsewhere."""

    def scale() -> Share | None:
        now = None if scaler is None else scale_of(scaler)
        return None if now is None else number_in(now)

    return scale


def mesh_of(transport: Transport | Mesh | None, own: Callable[[], Transport | Mesh], device: torch.device) -> Mesh:
    """The user's mesh, or one of its own. Raises ValueError where it cannot carry what lies on `device`."""
    mesh = Mesh.of(transport or own())
    try:
        mesh.check(device)
    except ValueError:
        let_go(mesh, transport)
        raise
    return mesh


def let_go(mesh: Mesh, transport: Transport | Mesh | None) -> None:
    """Closes a mesh that is not needed, unless it is the user's `transport`."""
    if transport is None:
        mesh.close()
