"""The parameters of a model that a step trains: at every step they may be others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.frontends.owners import check_free, held_by
from gradwire.runtime.runtime import Runtime
from gradwire.slots import Slot
from gradwire.torch_private.autograd import NO_PASS, backward_pass
from gradwire.torch_private.compiled import named_parameters

Check = Callable[[str, nn.Parameter], None]
"""Raises ValueError, naming the parameter, for one whose gradient cannot be reduced."""


class TrainedParameters:
    """The parameters that need a gradient now; with an `optimizer`, only parameters that it holds."""

    reducible: dict[str, nn.Parameter]
    """All parameters that can be reduced, frozen ones as well; a slot costs nothing until it is trained."""
    others: set[str]
    """The names of all others: empty parameters, and such as `check` refuses once they are trained."""
    names: dict[int, str]
    """The names of all parameters of the model, by id."""

    def __init__(self, model: nn.Module, check: Check, optimizer: Optimizer | None = None) -> None:
        named = dict(named_parameters(model))
        # empty parameters are never trained
        full = {name: p for name, p in named.items() if p.numel()}
        self._check, self._optimizer = check, optimizer
        # those that could be reduced, if they were trained
        self.reducible = {name: p for name, p in full.items() if _fits(name, p, check)}
        self.others = named.keys() - self.reducible.keys()
        # with an optimizer, only those that it holds: by name, and the ids of all
        self._full = self._held = full
        self._held_ids: set[int] = {id(p) for p in full.values()}
        # the names of the parameters that the runtime reduces now
        self._followed: Sequence[str] = ()
        self.names = {id(p): name for name, p in named.items()}
        self._looked = NO_PASS
        self.look()

    def now(self) -> list[str]:
        """The names of the trained parameters. Raises ValueError for one that cannot be reduced."""
        self.look()
        names = [name for name, parameter in self._held.items() if parameter.requires_grad]
        for name in self.others.intersection(names) if self.others else ():
            self._check(name, self._full[name])
        return names

    def now_or_fail(self, runtime: Runtime) -> list[str]:
        """The names of `now`. Where that raises, the job fails, for the other ranks may wait for this one."""
        try:
            return self.now()
        except ValueError as error:
            runtime.fail(error)
            raise

    def following(self) -> Self:
        """Notes that the runtime begins with the parameters of `now`; returns itself."""
        self._followed = self.now()
        return self

    def follow(self, runtime: Runtime) -> bool:
        """Has the runtime reduce the parameters of `now` from the next step on; returns whether there are any."""
        names = self.now_or_fail(runtime)
        # the runtime asks all ranks; a step that trains nothing changes nothing
        if names and names != self._followed:
            runtime.follow(names)
            self._followed = names
        return bool(names)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of `now`, by name. Raises ValueError where there is none."""
        if not (names := self.now()):
            if self._optimizer and any(parameter.requires_grad for parameter in self._full.values()):
                raise ValueError("the optimizer holds no parameter that this model trains; make it of its parameters")
            raise ValueError("the model has no parameter that needs a gradient, so there is nothing to reduce")
        return {name: self.reducible[name] for name in names}

    def held(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer holds, frozen or not, by name."""
        self.look()
        return self._held

    def holds(self, parameter: Tensor) -> bool:
        """Whether the optimizer holds a parameter of the model; looked up once in each backward pass."""
        if self._looked != (now := backward_pass()):
            self._looked = now
            self.look()
        return id(parameter) in self._held_ids

    def look(self) -> None:
        """Looks up which parameters the optimizer holds now; done once a step, for it takes a while."""
        if (held := self._held_now()) != self._held_ids:
            self._held_ids = held
            self._held = {name: p for name, p in self._full.items() if id(p) in held}

    def check_known(self) -> set[int]:
        """The ids of the parameters that the optimizer holds now. Raises RuntimeError where the model did not have one
        of them when it was wrapped."""
        if (held := self._held_now()) - self.names.keys():
            raise RuntimeError(
                "the optimizer holds a parameter that the model had not when it was wrapped; wrap it anew"
            )
        return held

    def check_averaged(self, accumulated: Iterable[str]) -> None:
        """Raises RuntimeError where the optimizer holds a parameter with a gradient that was only `accumulated` since
        the last step, or that it did not hold at the last look, in the backward pass."""
        held = self.check_known()
        for name in accumulated:
            if id(parameter := self.reducible[name]) in held and parameter.grad is not None:
                raise RuntimeError(
                    f"parameter {name!r} has a gradient of no_sync(), which is this rank's own; run the last backward "
                    "pass before step() outside of it, or call zero_grad()"
                )
        new = held - self._held_ids
        for name, parameter in self._full.items() if new else ():
            if id(parameter) in new and parameter.grad is not None:
                raise RuntimeError(
                    f"parameter {name!r} came to the optimizer after backward(), which has left it this rank's own "
                    "gradient; add it after optimizer.step() and zero_grad()"
                )

    def _held_now(self) -> set[int]:
        return {id(p) for p in held_by(self._optimizer)} if self._optimizer else self._held_ids


class HeldParameters(nn.Module):
    """The parameters that an optimizer holds, in place of their model where that is not known. They have the names that
    the optimizer was given, or those of their places, such as "0.3" for number 3 of group 0."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        groups = enumerate(optimizer.param_groups)
        places = [f"{number}.{place}" for number, group in groups for place in range(len(group["params"]))]
        given = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
        # names of two models may be the same
        names = given if len(set(given)) == len(places) else places
        self._named = dict(zip(names, held_by(optimizer), strict=True))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._named.items()


def add_to(optimizer: Optimizer, param_group: dict[str, Any], trained: TrainedParameters) -> Sequence[Tensor]:
    """Adds a group of the model's parameters to an optimizer, and returns them. Raises ValueError for others, and for
    those that are averaged already."""
    # torch takes one tensor, some, or pairs of name and tensor
    given = param_group["params"]
    given = [given] if isinstance(given, Tensor) else list(given)
    added = [each[1] if isinstance(each, tuple) else each for each in given]
    # they must be known to the job, and no other job's
    names = trained.names
    if any(id(parameter) not in names for parameter in added):
        raise ValueError("the group has a parameter that the model had not when it was wrapped; wrap it anew")
    check_free({names[id(p)]: p for p in added})
    # the wrapped optimizer steps them from now on
    optimizer.add_param_group({**param_group, "params": given})
    return added


def check_held(optimizer: Optimizer, model: nn.Module) -> None:
    """Raises ValueError where an optimizer holds a parameter that is not the model's."""
    known = {id(p) for p in model.parameters()}
    if any(id(p) not in known for p in held_by(optimizer)):
        raise ValueError(
            "the optimizer holds a parameter that is not the model's; make it of parameters of the model that you pass"
        )


def on_one_device(model: nn.Module) -> Check:
    """A check that refuses parameters that cannot be sent together with the first trained one: on another device, or
    not of floating-point numbers."""
    trained = [(name, p) for name, p in named_parameters(model) if p.requires_grad and p.numel()]

    # asked for each parameter that is trained, now or once it is thawed
    def check(name: str, parameter: nn.Parameter) -> None:
        Slot.of(name, parameter)
        if trained and parameter.device != trained[0][1].device:
            raise ValueError(
                f"parameter {trained[0][0]!r} is on {trained[0][1].device} and {name!r} on {parameter.device}; give "
                "each rank one device"
            )

    return check


def _fits(name: str, parameter: nn.Parameter, check: Check) -> bool:
    try:
        check(name, parameter)
    except ValueError:
        return False
    return True
