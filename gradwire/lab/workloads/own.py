"""A user's own model: a function that gives model, batches and loss."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import signature
from itertools import count, islice
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from gradwire.importing import imported, raised
from gradwire.lab.random_state import RandomState, mixed, seeded
from gradwire.lab.results import TRAINING_LOSS
from gradwire.lab.task_error import TaskError
from gradwire.lab.workloads.task import Task

_ARGUMENTS = {"batches": ("rank", "world"), "loss": ("model", "batch"), "held_out": ()}
_CALL = "return model, batches, loss (and, if you like, held_out)"


@dataclass(frozen=True)
class UserParts:
    """Result of the user's function."""

    model: nn.Module
    """Trained by the job."""
    batches: Callable[[int, int], Iterable[Any]]
    """Of a rank and the number of ranks."""
    loss: Callable[[nn.Module, Any], Tensor]
    """Of a model and a batch: a scalar."""
    held_out: Callable[[], Iterable[Any]] | None
    """Batches on which the loss is shown."""


@dataclass(frozen=True, kw_only=True)
class UserModel(Task):
    """Your own model: `function` is module:name or file.py:name, and returns model, batches and loss.

    The model is a module; batches(rank, world) an iterable of a rank's batches, begun anew where it ends; and
    loss(model, batch) the mean loss of one. A fourth, held_out(), may give batches on which the loss is shown.

    Raises ValueError for what cannot be imported or is of another form, TaskError where the function, or
    the call of batches or held_out, raises, and for a loss that is no number.
    """

    name: ClassVar[str] = "own"
    metric: ClassVar[str] = "loss"
    optimizer: ClassVar[Literal["sgd", "adamw"]] = "adamw"
    scored: ClassVar[tuple[str, ...]] = ("loss",)

    function: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._made  # noqa: B018

    @property
    def _made(self) -> UserParts:
        return _first(self.function)

    def _module(self) -> nn.Module:
        model, first = _make(self.function).model, {id(parameter) for parameter in self._made.model.parameters()}
        # a model of the user's module would train on from one configuration to the next, and from one seed to another
        if any(id(parameter) in first for parameter in model.parameters() if parameter.requires_grad):
            raise ValueError(
                f"{self.function} returns the parameters that it has returned before: make a new model in each call, "
                "or return copy.deepcopy(model)"
            )
        return model

    def batches(self, rank: int, world: int, seed: int, start: int = 0) -> Iterator[Any]:
        """The function's batches, again and again. Those before `start` are read at once and left out.

        They draw from a state of torch's CPU generator of their own, which epoch and seed begin: the same on all ranks,
        so that these agree on an order, and in a resumed training. Where a sampler has `set_epoch`, it orders by that,
        and the state, from which noise and a DataLoader's workers draw, is another on each rank."""
        batches = self._endless(rank, world, seed)
        for _ in islice(batches, start):
            pass
        return batches

    def _endless(self, rank: int, world: int, seed: int) -> Iterator[Any]:
        batches: Iterable[Any] = ()
        begins_anew = False
        for epoch in count():
            # the function's batches, made again where they are an iterator, which does not begin anew by itself
            state = RandomState(mixed(seed, epoch))
            if not begins_anew:
                own = self._made
                with _failing(self.function), state.used():
                    made = own.batches(rank, world)
                batches = _iterable(made, "batches(rank, world)", self.function)
            if hasattr(sampler := getattr(batches, "sampler", None), "set_epoch"):
                sampler.set_epoch(epoch)  # pyright: ignore[reportOptionalMemberAccess]
                state = RandomState(mixed(seed, epoch, rank))
            # each is drawn in the data's own state
            with _named(self.function), state.used():
                iterator = iter(batches)
            begins_anew = iterator is not batches
            if not (batch := self._next(iterator, state)):
                raise ValueError(f"{self.function}: batches({rank}, {world}) gives no batch")
            while batch:
                yield batch[0]
                batch = self._next(iterator, state)

    def _next(self, iterator: Iterator[Any], state: RandomState) -> list[Any]:
        """The next batch, none at the end."""
        with _named(self.function), state.used():
            return list(islice(iterator, 1))

    def epoch_steps(self, world: int) -> int:
        """The length of the batches. Raises ValueError where they have none."""
        own = self._made
        with _failing(self.function), RandomState(0).used():
            batches = own.batches(0, world)
        if not hasattr(batches, "__len__"):
            raise ValueError(f"{self.function}: batches(rank, world) has no length and so no epochs: give --steps")
        return len(batches)  # pyright: ignore[reportArgumentType]

    def batch_loss(self, model: nn.Module, batch: Any) -> Tensor:
        with _named(self.function):
            loss = self._made.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            raise TaskError(f"{self.function}: loss(model, batch) gives {_form(loss)}, not one number: {_CALL}")
        return loss

    @property
    def looked_at(self) -> str:
        """The held-out loss, or that of training where nothing is held out."""
        return self.metric if self._made.held_out else TRAINING_LOSS

    @property
    def held_out_size(self) -> int:
        return len(_held_out(self.function))

    def held_out_batch(self, index: Tensor) -> Any:
        return [_held_out(self.function)[number] for number in index.tolist()]

    def scores(self, model: nn.Module, batch: Any) -> list[float]:
        """The sum of the batches' losses."""
        return [sum(self.batch_loss(model, each).item() for each in batch), len(batch)]

    def figures(self, sums: list[float]) -> dict[str, float]:
        """The mean over the batches; nothing where none are held out."""
        return super().figures(sums) if self._made.held_out else {}


def begin_anew() -> None:
    """Has functions called again, as in a new process: what generators of their own a job has drawn from is not seen
    by the next."""
    _first.cache_clear()
    _held_out.cache_clear()


@cache
def _first(function: str) -> UserParts:
    """The result from which batches and loss are taken; models are made anew."""
    with seeded(0):
        return _make(function)


def _make(function: str) -> UserParts:
    # a tuple of the right length
    with _named(function):
        make = imported(function)
    _check_takes(function, make, ())
    with _failing(function):
        made = make()
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        raise ValueError(f"{function} returns {_form(made)}, not a tuple of three or four: {_CALL}")
    # a module with something to train
    model, *functions = made
    if not isinstance(model, nn.Module):
        raise ValueError(f"{function} returns {_form(model)} as model, not a torch.nn.Module: {_CALL}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"{function} returns a model without parameters to train: there is nothing to send")
    # functions of the right arguments
    for (name, arguments), value in zip(_ARGUMENTS.items(), functions, strict=False):
        if not callable(value):
            raise ValueError(f"{function} returns {_form(value)} as {name}, not a function: {_CALL}")
        _check_takes(f"{function}: {name}", value, arguments)
    return UserParts(model, *functions) if len(functions) == 3 else UserParts(model, *functions, held_out=None)


def _check_takes(called: str, value: Callable[..., object], arguments: Sequence[str]) -> None:
    """Raises ValueError for a function that cannot be called with these arguments."""
    try:
        own = signature(value)
    except ValueError:
        # some that are written in C have no signature
        return
    try:
        own.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{called} is called with ({', '.join(arguments)}), but takes {own}") from error


@cache
def _held_out(function: str) -> list[Any]:
    """The batches that are held out, read once: the same on all ranks, and in a resumed training as before."""
    if (held_out := _first(function).held_out) is None:
        return []
    with _named(function), RandomState(0).used():
        with _failing(function):
            given = held_out()
        batches = list(_iterable(given, "held_out()", function))
    if not batches:
        raise ValueError(f"{function}: held_out() gives no batch: give one or more, or leave held_out out")
    return batches


def _iterable(value: Any, called: str, function: str) -> Iterable[Any]:
    if not isinstance(value, Iterable):
        raise ValueError(f"{function}: {called} gives {_form(value)}, not batches to go through, such as a DataLoader")
    return value


def _form(value: Any) -> str:
    match value:
        case tuple():
            return f"a tuple of {len(value)}"
        case Tensor():
            return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
        case _:
            return f"a {type(value).__name__}"


@contextmanager
def _named(function: str) -> Iterator[None]:
    """Names the user's function where a package that it needs is missing: else Gradwire would be blamed."""
    try:
        yield
    except ImportError as error:
        raise TaskError(f"{function} cannot import what it needs: {error}") from error


@contextmanager
def _failing(function: str) -> Iterator[None]:
    """Makes any exception of the user's function a TaskError of one line. Training steps keep their traceback, which
    helps."""
    with _named(function):
        try:
            yield
        except ImportError:
            raise
        except Exception as error:
            raise TaskError(f"{function} fails with {raised(error)}") from error
