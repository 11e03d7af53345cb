"""Random trainings in which the calls of a handle come at any moment of a step, and a model of what must hold.

A schedule is drawn from a seed, the same on all ranks. Each rank trains and logs; `check` compares the logs:

- what gradients gave is in the means or in the residuals, parameter by parameter, whatever was called meanwhile;
- means are the same on all ranks, and under FP32 they are the mean of the ranks' gradients;
- a call acts, or is refused, on all ranks; one that is refused has changed nothing;
- `state_dict()` is the state after the last whole step, and after `load_state_dict()` what was loaded.
"""

import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import gradwire as gw

LAYERS, WIDTH = 4, 4
FAMILIES = [gw.FP32(), gw.TopK(0.3), gw.EFSignSGD(block=8), gw.PowerSGD(1)]
DENSE = gw.FP32()
BETWEEN = ("before forward", "under no_sync", "after forward", "after backward")
INSIDE = "in backward"
CALLS = (
    "replan", "load_state_dict", "state_dict", "state_dict(all_ranks)", "verify", "stragglers", "from_first", "looks",
    "trace",
)  # fmt: skip
REFUSED = re.compile(r"inside a backward pass|the ranks differ in (when they )?call")  # of two threads
ALONE = ("state_dict", "stateful", "looks", "trace")
"""What a rank may call by itself."""


class Network(nn.Module):
    """Layers of equal shapes, so that nothing but its name tells one parameter's state from another's. `hooked` is
    called in backward with the gradient of a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.hooked: tuple[int, Callable[[], None]] | None = None
        self.outputs: dict[int, Tensor] = {}

    def forward(self, x: Tensor, skipped: int = -1) -> Tensor:
        x = x.detach().requires_grad_()
        for index, layer in enumerate(self.layers):
            if index != skipped:
                x = x + torch.tanh(layer(x))
            if x.requires_grad:
                self.outputs[index] = x
            if self.hooked and self.hooked[0] == index:
                call = self.hooked[1]
                x.register_hook(lambda gradient, call=call: call())
        return x


@dataclass
class Call:
    """One call: when, which, of another thread or not, and what it is given."""

    moment: str
    name: str
    threaded: bool
    layer: int
    chosen: random.Random

    def __str__(self) -> str:
        return f"{self.name} {self.moment}{', of another thread' if self.threaded else ''}"


@dataclass
class Log:
    """What one rank has seen: by parameter, in one vector (n,), what its gradients `gave` of the mean, the means that
    it `got`, what calls that load have `loaded` beyond what was there, and the residual that is left."""

    gave: Tensor
    got: Tensor
    loaded: Tensor
    left: Tensor
    means: list[Tensor] = field(default_factory=list)
    exact: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)


class Trained(Protocol):
    """A front end at work on this rank."""

    handle: gw.Handle
    model: Network

    def accumulate(self) -> Any: ...

    def forward(self, x: Tensor, skipped: int) -> Tensor: ...

    def taken(self, given: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Takes a step, having `given` this share of a mean (n,). Returns what was really given, and the means."""
        ...

    def settle(self) -> None:
        """Returns when what is under way has ended."""
        ...

    def last(self) -> list[Tensor]:
        """The means that no step has taken."""
        ...


Make = Callable[[int, gw.Plan | gw.TopK, bool], Trained]
"""What trains, of this rank: with a plan or compressor to begin with, and whether parameters may be unused."""


def names_of() -> list[str]:
    return [name for name, _ in Network().named_parameters()]


class OfGradients:
    """Trains the model by means that are its gradients; `called` is what is trained, such as DDP of the model."""

    def __init__(self, model: Network, called: nn.Module, handle: gw.Handle, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.called, self.handle, self.accumulate = model, called, handle, handle.accumulate
        self.optimizer = optimizer

    def forward(self, x: Tensor, skipped: int) -> Tensor:
        return self.called(x, skipped)

    def taken(self, given: Tensor) -> tuple[Tensor, list[Tensor]]:
        mean = flat([torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters()])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return given, [mean]

    def settle(self) -> None:
        """Nothing is, between steps."""

    def last(self) -> list[Tensor]:
        return []


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([whole(tensor).double().flatten() for tensor in tensors])


def dense_of(begins: gw.Plan | gw.TopK) -> Callable[..., bool] | None:
    """A plan says itself what is dense; else nothing is, for residuals of biases are to be there as well."""
    return None if isinstance(begins, gw.Plan) else lambda name, parameter: False


def drawn_plan(chosen: random.Random, exact: bool, native: bool, parts: Sequence[Sequence[str]]) -> gw.Plan:
    """Slots in any order, in any groups, of which none crosses a part."""
    if native and chosen.random() < 0.3:
        return gw.plans.NATIVE
    groups = [group for names in parts for group in drawn_groups(chosen, exact, list(names))]
    chosen.shuffle(groups)
    return gw.Plan(tuple(groups))


def drawn_groups(chosen: random.Random, exact: bool, names: list[str]) -> list[gw.Group]:
    chosen.shuffle(names)
    groups = []
    while names:
        count = chosen.randint(1, len(names))
        compressor = DENSE if exact else chosen.choice(FAMILIES)
        memory, over = gw.plans.default_memory(compressor), gw.plans.default_communicator(compressor)
        groups.append(gw.Group(tuple(names[:count]), compressor, memory, over))
        names = names[count:]
    return groups


class Training:
    """A schedule on one rank. `exact`: every plan is FP32. What is sent goes on `after_step`s in some front ends."""

    def __init__(
        self,
        seed: int,
        rank: int,
        world: int,
        make: Make,
        native: bool = False,
        parts: Sequence[Sequence[str]] = (),
        after_steps: bool = False,
        calls: Sequence[str] = CALLS,
        may_fail: bool = False,
        sharded: bool = False,
    ) -> None:
        self.chosen = random.Random(seed)
        self.rank, self.world, self.native, self.after_steps, self.calls = rank, world, native, after_steps, calls
        self.parts, self.may_fail, self.sharded = parts or [names_of()], may_fail, sharded
        self.exact, self.unused = self.chosen.random() < 0.3, self.chosen.random() < 0.3
        begins = drawn_plan(self.chosen, self.exact, False, self.parts)
        if self.chosen.random() < 0.3:
            begins = DENSE if self.exact else gw.TopK(0.3)
        self.trained = make(rank, begins, self.unused)
        self.handle = self.trained.handle
        self.mirror = Network()
        size = sum(p.numel() for p in self.mirror.parameters())
        zeros = [torch.zeros(size, dtype=torch.float64) for _ in range(4)]
        self.log = Log(*zeros)
        self.saved = [self.handle.state_dict()]
        self.whole = self.saved[0]

    def run(self) -> Log:
        for step in range(self.chosen.randint(2, 5)):
            self._step(step, self._drawn_calls())
        self.trained.settle()
        self._add(torch.zeros_like(self.log.gave), self.trained.last())
        self.log.left = self._residual()
        return self.log

    def _drawn_calls(self) -> list[Call]:
        chosen = self.chosen
        moments = [chosen.choice((*BETWEEN, INSIDE)) for _ in range(chosen.choice((0, 1, 1, 2, 3)))]
        return [
            Call(
                moment, chosen.choice(self.calls), chosen.random() < 0.3, chosen.randrange(LAYERS),
                random.Random(chosen.random()),
            )
            for moment in moments
        ]  # fmt: skip

    def _step(self, step: int, calls: Sequence[Call]) -> None:
        self._make(calls, "before forward")
        micro = self.chosen.choice((1, 1, 2))
        skipped = [self.chosen.randrange(-1, LAYERS) for _ in range(self.world)][self.rank] if self.unused else -1
        self._watch(calls)
        given = torch.zeros_like(self.log.gave)
        for part in range(micro):
            x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1000 * step + 10 * part + self.rank))
            given += self._own_gradient(x, skipped) / self.world
            if part < micro - 1:
                with self.trained.accumulate():
                    loss = self.trained.forward(x, skipped).square().mean()
                    self._make(calls, "under no_sync")
                    loss.backward()
            else:
                loss = self.trained.forward(x, skipped).square().mean()
                self._make(calls, "after forward")
                with self._racing():
                    failed = self._backward(loss)
        self.trained.model.hooked = None
        if failed:
            self.trained.model.zero_grad()
            self.whole = {
                key: tensor for key, tensor in self.whole.items() if key != "step"
            }  # it is counted, as skipped
        else:
            self.whole = {} if self.after_steps else self.handle.state_dict()
        self._make(calls, "after backward")
        if not failed:
            self._add(*self.trained.taken(given))
        if self.after_steps:
            self.whole = {}

    def _backward(self, loss: Tensor) -> bool:
        """Whether it fails, on this rank or another one, after some gradients have come."""
        fails = self.may_fail and not self.unused and self.chosen.random() < 0.15
        fails = fails and not self.trained.model.hooked  # else some ranks alone make the calls that come later
        ranks, layer = self.chosen.choice(([0], [1], [0, 1])), self.chosen.randrange(LAYERS - 1)
        hooked = self.trained.model.outputs[layer].register_hook(fail) if fails and self.rank in ranks else None
        try:
            loss.backward()
        except Failure:
            assert hooked
        return fails

    @contextmanager
    def _racing(self) -> Iterator[None]:
        """Sometimes another thread makes a call at whatever moment it comes to; then it does so on all ranks."""
        call = Call(
            "racing",
            self.chosen.choice(("replan", "stragglers", "from_first")),
            True,
            0,
            random.Random(self.chosen.random()),
        )
        found: list[BaseException | None] = []
        races = self.chosen.random() < 0.15
        thread = threading.Thread(target=lambda: found.append(caught(lambda: self._do(call))), daemon=True)
        if races:
            thread.start()
        yield
        if races:
            thread.join(30)
            assert found, "a call of another thread has failed, or hangs"
            assert found[0] is None or REFUSED.search(str(found[0])), found
            self.log.outcomes.append(f"{call} {'refused' if found[0] else 'done'}")

    def _own_gradient(self, x: Tensor, skipped: int) -> Tensor:
        """As plain torch has it."""
        with torch.no_grad():
            for mine, theirs in zip(self.mirror.parameters(), self.trained.model.parameters(), strict=True):
                mine.copy_(whole(theirs))
        loss = self.mirror(x, skipped).square().mean()
        gradients = torch.autograd.grad(loss, list(self.mirror.parameters()), allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.double().flatten() for gradient in gradients])

    def _add(self, given: Tensor, means: Sequence[Tensor]) -> None:
        self.log.gave += given
        self.log.got += sum(means)
        self.log.means += means
        if self.exact and not self.after_steps:
            self.log.exact += [(given, mean) for mean in means]

    # Calls

    def _make(self, calls: Sequence[Call], moment: str) -> None:
        for call in calls:
            if call.moment == moment:
                self._outcome(call, refused=False)

    def _watch(self, calls: Sequence[Call]) -> None:
        """Those inside a backward pass come from a hook."""
        inside = [call for call in calls if call.moment == INSIDE]
        if inside:
            made = iter(inside)

            def come() -> None:
                for call in made:
                    self._outcome(call, refused=True)

            self.trained.model.hooked = (inside[0].layer, come)

    def _outcome(self, call: Call, refused: bool) -> None:
        """`refused`: where the call is one that all ranks make together, it must be."""
        before = None if self.after_steps else self._residual()
        # FSDP gathers parameters meanwhile: the thread that trains alone may compare them
        threaded = call.threaded and not (self.sharded and call.name == "verify")
        error = of_thread(lambda: self._do(call)) if threaded else caught(lambda: self._do(call))
        of_all = call.name not in ALONE
        if refused and of_all and (error is not None or not threaded):  # other threads may come before a gradient
            assert REFUSED.search(str(error)), f"{call} came to {error!r}"
        elif error is not None:
            raise AssertionError(f"{call} came to {error!r}") from error
        if before is not None and (error is not None or call.name != "load_state_dict"):
            assert torch.equal(self._residual(), before), f"{call} has changed the memories"
        self.log.outcomes.append(f"{call} {'refused' if error else 'done'}")

    def _do(self, call: Call) -> None:
        handle = self.handle
        match call.name:
            case "replan":
                plan = drawn_plan(call.chosen, self.exact, self.native, self.parts)
                handle.replan(plan)
                assert handle.plan == plan
            case "load_state_dict":
                self._load(call.chosen.choice(self.saved))
            case "state_dict":
                if self.whole:
                    same(handle.state_dict(), self.whole)
                if call.moment != INSIDE:
                    self.trained.settle()
                    self.saved.append(handle.state_dict())
            case "state_dict(all_ranks)":
                handle.state_dict(all_ranks=True)
            case "stateful":
                handle.stateful().state_dict()
            case "verify":
                assert handle.verify(heal=call.chosen.random() < 0.5) == []
            case "stragglers":
                handle.stragglers()
            case "from_first":
                assert int(handle.from_first({"rank": self.rank})["rank"]) == 0
            case "trace":
                caught(lambda: handle.trace(1))  # refused where DDP reduces by itself
            case _:
                assert handle.plan is not None
                handle.stats(), handle.status(), handle.summary(), repr(handle)

    def _load(self, state: dict[str, Tensor]) -> None:
        self.trained.settle()
        before = self._residual()
        self.handle.load_state_dict(state)
        after = self._residual()
        held = flat([torch.full_like(p, has(state, name)) for name, p in self.mirror.named_parameters()]).bool()
        expected = torch.where(held, residual_in(state), before)  # parameters that a state lacks keep theirs
        assert torch.equal(after, expected), "what was loaded is not the state"
        self.log.loaded += after - before
        self.whole = self.handle.state_dict()

    def _residual(self) -> Tensor:
        return residual_in(self.handle.state_dict())


class Failure(RuntimeError):
    """A user's mistake, in backward."""


def fail(gradient: Tensor) -> None:
    raise Failure


def residual_in(state: dict[str, Tensor]) -> Tensor:
    """By parameter, (n,)."""
    parts = [
        state.get(f"{name}//residual", torch.zeros(p.shape)).double().flatten()
        for name, p in Network().named_parameters()
    ]
    return torch.cat(parts)


def has(state: dict[str, Tensor], parameter: str) -> bool:
    """Whether a state holds anything of a parameter."""
    return any(key.startswith(f"{parameter}//") for key in state)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """But for the plan in force, which may be another."""
    assert "step" not in other or torch.equal(one["step"], other["step"])
    for key in (key for key in one.keys() | other.keys() if key.endswith("//residual")):
        a, b = one.get(key), other.get(key)
        assert a is not None or not b.any(), key
        assert b is not None or not a.any(), key
        assert a is None or b is None or torch.equal(a, b), f"{key} is not that after the last whole step"


def caught(task: Callable[[], None]) -> BaseException | None:
    try:
        task()
    except ValueError as error:
        return error
    return None


def of_thread(task: Callable[[], None]) -> BaseException | None:
    """What it raises on a thread of its own."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            found.append(caught(task))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert found, "a call of another thread hangs"
    return found[0]


def check(logs: Sequence[Log]) -> None:
    """What must hold over the ranks."""
    first = logs[0]
    for log in logs[1:]:
        assert log.outcomes == first.outcomes, "a call did not come to the same on all ranks"
        assert len(log.means) == len(first.means), "ranks have more or fewer means"
        assert all(map(torch.equal, log.means, first.means)), "ranks have other means"
    gave, loaded, left = (sum(getattr(log, name) for log in logs) for name in ("gave", "loaded", "left"))
    torch.testing.assert_close(first.got + left, gave + loaded, rtol=1e-4, atol=1e-5, msg=lambda m: f"lost: {m}")
    for given in zip(*(log.exact for log in logs), strict=True):
        mean = sum(own for own, _ in given)
        torch.testing.assert_close(given[0][1], mean, rtol=1e-5, atol=1e-7, msg=lambda m: f"not plain torch: {m}")
