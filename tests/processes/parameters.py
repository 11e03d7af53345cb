"""Which parameters are reduced beside plain DDP, and every way to call it: scenarios as in `scenarios`."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import signature
from time import sleep

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradwire as gw
from gradwire.runtime.steps.machine import Arrivals
from gradwire.tuner import CHOOSING_STEPS
from tests.processes.scenarios import Turns, batch, network, refused, same_on_all_ranks, scenario, train

DDP_OPTIONS = signature(DistributedDataParallel.__init__).parameters
ADAPTER = ["adapter.weight", "adapter.bias"]


class Parts(nn.Module):
    """A branch that may be frozen, ignored or thawed, and what is put in later."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.adapter, self.head = nn.Linear(20, width), nn.Linear(width, width), nn.Linear(width, 5)
        self.late: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x).relu()
        return self.head(self.late(hidden + self.adapter(hidden)))


def plain(model: Parts, **options) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=0.005, **options)


def ignored(model: Parts) -> DistributedDataParallel:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ADAPTER)
    return plain(model)


def delayed(model: Parts) -> DistributedDataParallel:
    """In buckets of a whole number of megabytes: torch 2.11 refuses parts of one where it delays parameters."""
    late = {"delay_all_reduce_named_params": [(name, model.get_parameter(name)) for name in ADAPTER]}
    return DistributedDataParallel(model, bucket_cap_mb=1, param_to_hook_all_reduce=model.stem.weight, **late)


def frozen_between(model: Parts) -> DistributedDataParallel:
    ddp = plain(model, find_unused_parameters=True)
    model.adapter.requires_grad_(False)
    return ddp


def thawed_between(model: Parts) -> DistributedDataParallel:
    model.adapter.requires_grad_(False)
    ddp = plain(model)
    model.adapter.requires_grad_(True)
    return ddp


def registered_after(model: Parts) -> DistributedDataParallel:
    ddp = plain(model)
    model.late = nn.Linear(40, 40)
    return ddp


def frozen_at_first(model: Parts) -> DistributedDataParallel:
    model.adapter.requires_grad_(False)
    return plain(model)


Way = Callable[..., gw.Handle]
Trained = tuple[DistributedDataParallel, gw.Handle | None]
Made = Callable[[Parts], DistributedDataParallel]
unused: Made = partial(plain, find_unused_parameters=True)
CASES: dict[str, tuple[Made, dict[int, bool], list[str]]] = {
    "ignored": (ignored, {}, ADAPTER),
    "delayed": (delayed, {}, []),
    "frozen between": (frozen_between, {}, []),
    "frozen between, thawed later": (frozen_between, {4: True}, []),
    "thawed between": (thawed_between, {}, ADAPTER),
    "registered after": (registered_after, {}, ["late.weight", "late.bias"]),
    "frozen later": (unused, {3: False}, []),
    "frozen later, thawed again": (unused, {3: False, 6: True}, []),
    "thawed later": (frozen_at_first, {3: True}, ADAPTER),
}
"""How DDP is made; after how many steps the adapter needs gradients or not; and what is then local in plain DDP."""


def trained(made: Made, changes: dict[int, bool], way: Way | None, steps: int = 10) -> Trained:
    """After steps of which every third accumulates."""
    model = Parts()
    ddp = made(model)
    handle = way(ddp) if way else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        if step in changes:
            model.adapter.requires_grad_(changes[step])
        optimizer.zero_grad()
        for part in (0, 1) if step % 3 == 2 else (1,):
            inputs, targets = batch(10 * step + part)
            with nullcontext() if part else ddp.no_sync():
                nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
    return ddp, handle


def local_in(model: nn.Module) -> list[str]:
    """The parameters that differ between ranks."""
    return [name for name, p in model.named_parameters() if not same_on_all_ranks(p.detach())]


@contextmanager
def warnings_in() -> Iterator[list[str]]:
    """The warnings of Gradwire's logger inside."""
    messages: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("gradwire")
    handler.emit = lambda record: messages.append(record.getMessage())
    log.addHandler(handler)
    yield messages
    log.removeHandler(handler)


@scenario(2)
def what_ddp_does_not_reduce_is_left_alone() -> None:
    ways: list[Way] = [
        partial(gw.attach, compressor=gw.FP32()),
        partial(gw.attach, compressor=gw.FP32(), controller=Turns()),
        partial(gw.attach, compressor=gw.NATIVE),
        partial(gw.attach, compressor=gw.TopK(0.1)),
        partial(gw.attach, compressor=gw.PowerSGD(2)),
        partial(gw.attach, candidates=[gw.BF16(), gw.TopK(0.1)]),
    ]
    for case, (made, changes, local) in CASES.items():
        expected, _ = trained(plain if made is delayed else made, changes, None)  # DDP does not wait for what it delays
        assert local_in(expected.module) == local, case
        named = ADAPTER if case == "delayed" else local
        for number, way in enumerate(ways):
            with warnings_in() as messages:
                ddp, handle = trained(made, changes, way)
            assert handle
            assert local_in(ddp.module) == local, (case, number)
            # one warning, and none of parameters that DDP ignores on purpose
            warned = [message for message in messages if message.startswith("DDP does not reduce parameter ")]
            assert len(warned) == (case != "ignored" and bool(local)), (case, number, messages)
            assert all(f"{local[0]!r} and 1 more" in message for message in warned), (case, number, messages)
            assert all(repr(name) in handle.status() for name in named), (case, handle.status())
            assert handle.status().count("'") == 2 * len(named), (case, handle.status())
            for name, p in ddp.module.named_parameters() if number < 3 else ():
                torch.testing.assert_close(p, expected.module.get_parameter(name), msg=f"{case} {number} {name}")
            assert handle.verify() == []
            handle.detach()


# Calls that torch runs no hook before


def by_method(ddp: DistributedDataParallel, inputs: Tensor) -> Tensor:
    """As frameworks do that call a method of the module: DDP is only asked to reduce."""
    output = ddp.module(inputs)
    if ddp.require_backward_grad_sync:
        ddp.reducer.prepare_for_backward([])
    return output


def by_turns(ddp: DistributedDataParallel, inputs: Tensor) -> Tensor:
    by_turns.calls += 1
    return ddp(inputs) if by_turns.calls % 5 < 2 else ddp.forward(inputs)


by_turns.calls = 0


def twice(ddp: DistributedDataParallel, inputs: Tensor) -> Tensor:
    """Two forward passes for one backward, after one without gradients."""
    with torch.no_grad():
        ddp.forward(inputs)
    return (ddp(inputs) + ddp.forward(inputs)) / 2


def called(forward: Callable[..., Tensor], attach: Way | None, steps: int) -> tuple[Tensor, gw.Handle | None]:
    """The parameters after steps in which DDP is called so; every third accumulates, and after every fifth one rank has
    a backward pass that DDP does not reduce."""
    ddp = plain(Parts())
    handle = attach(ddp) if attach else None
    for step in range(steps):
        ddp.zero_grad()
        for part in (0, 1) if step % 3 == 2 else (1,):
            inputs, targets = batch(10 * step + part)
            with nullcontext() if part else ddp.no_sync():
                nn.functional.cross_entropy(forward(ddp, inputs), targets).backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p.sub_(p.grad, alpha=0.1)  # pyright: ignore[reportArgumentType]
        if step % 5 == 4 and dist.get_rank() == 0:
            ddp.zero_grad()
            ddp.module(batch(step)[0]).sum().backward()
    return torch.cat([p.detach().flatten() for p in ddp.parameters()]), handle and keep(ddp, handle)


def keep(ddp: DistributedDataParallel, handle: gw.Handle) -> gw.Handle:
    assert handle.status().startswith("rank")
    return handle


@scenario(2)
def steps_begin_where_gradients_do_however_ddp_is_called() -> None:
    expected, _ = called(lambda ddp, inputs: ddp(inputs), None, 16)
    for forward in (lambda ddp, inputs: ddp.forward(inputs), by_method, by_turns, twice):
        by_turns.calls = 0
        for controller in (None, Turns()):
            found, handle = called(forward, partial(gw.attach, compressor=gw.FP32(), controller=controller), 16)
            torch.testing.assert_close(found, expected)
            assert handle
            assert forward is by_turns or 14 <= handle.stats().steps <= 16, (forward, controller, handle.stats())
        for way in (partial(gw.attach, compressor=gw.TopK(0.1)), partial(gw.attach, compressor=gw.NATIVE)):
            assert same_on_all_ranks(called(forward, way, 8)[0])


@scenario(2)
def a_plan_is_found_though_no_forward_pass_is_seen() -> None:
    way = partial(gw.attach, candidates=[gw.BF16(), gw.TopK(0.1)])
    found, handle = called(lambda ddp, inputs: ddp.forward(inputs), way, CHOOSING_STEPS + 10)
    assert same_on_all_ranks(found)
    assert handle
    assert "was predicted for the best" in handle.stats().account  # it may be planning anew, where steps became slower


# What DDP reduces by itself, or cannot reduce


@scenario(2)
def backward_ends_after_the_sum_of_what_ddp_delays() -> None:
    ddp = delayed(Parts(width=1500))  # 9 MB, beside which all else is little
    handle = gw.attach(ddp, gw.TopK(0.01))
    for step in range(4):
        inputs, targets = batch(step)
        ddp.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        means = ddp.module.adapter.weight.grad.clone()  # pyright: ignore
        assert same_on_all_ranks(means), step
    assert handle.status().endswith("DDP by itself reduces 'adapter.weight', 'adapter.bias'")
    handle.detach()


@scenario(2)
def what_cannot_be_reduced_is_one_clear_line() -> None:
    def attach(ddp: DistributedDataParallel) -> None:
        gw.attach(ddp, gw.TopK(0.1))

    model = network()
    model[:4].requires_grad_(False)
    last = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    every = {"delay_all_reduce_named_params": last, "param_to_hook_all_reduce": model[4].weight}
    refused(ValueError, "leave some out of it", partial(attach, DistributedDataParallel(model, **every)))
    replaced = DistributedDataParallel(network())
    replaced.module[4] = nn.Linear(60, 5)
    refused(ValueError, "make DDP anew", partial(attach, replaced))


class Averaging(torch.optim.SGD):
    """As schedule-free optimizers are: in one of two modes."""

    mode = "train"

    def eval(self) -> None:
        self.mode = "eval"


@scenario(2)
def what_only_the_wrapped_optimizer_has_is_found() -> None:
    for wrap in (gw.DistributedOptimizer, gw.LocalSteps):
        model = network()
        inner = Averaging(model.parameters(), lr=0.1)
        inner._step_supports_amp_scaling = True  # GradScaler would leave unscaling to the wrapper
        optimizer = wrap(inner, model, gw.TopK(0.1))
        optimizer.eval()
        assert optimizer.mode == inner.mode == "eval"
        assert not hasattr(optimizer, "train")
        # a GradScaler leaves steps out by itself, but for local steps, which count them
        assert hasattr(optimizer, "_step_supports_amp_scaling") == (wrap is gw.LocalSteps)
        refused(
            AttributeError, f"{wrap.__name__!r} object has no attribute '_nothing'", lambda it=optimizer: it._nothing
        )


@scenario(2)
def a_layer_that_one_rank_froze_is_named_on_all() -> None:
    ddp = plain(Parts())
    gw.attach(ddp, gw.TopK(0.1))

    def train() -> None:
        for step in range(5):
            if step == 3:
                ddp.module.adapter.requires_grad_(dist.get_rank() == 0)
            inputs, targets = batch(step)
            nn.functional.cross_entropy(ddp(inputs), targets).backward()

    refused(RuntimeError, "parameter 'adapter.bias' was frozen after DDP was made, which waits for its gradient", train)


@scenario(2)
def a_handle_whose_ddp_was_not_kept_says_so() -> None:
    handle = gw.attach(plain(Parts()), gw.TopK(0.1))
    gc.collect()
    assert "its DDP was garbage collected" in handle.status()
    assert handle.ended
    assert not handle.detached
    for call in (handle.stateful, handle.verify):
        refused(ValueError, "was garbage collected: keep a reference to ddp", call)
    handle.detach()


class Heads(nn.Module):
    """Large heads without biases, which lie in buckets of their own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(20, 16)
        self.heads = nn.ModuleList(nn.Linear(16, 200_000, bias=False) for _ in range(2))

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](self.stem(x)).square().sum()


def heads_gradients(compressor: gw.Compressor | None) -> list[Tensor]:
    """Those of the first head, step by step; the other one is used at first alone."""
    ddp = DistributedDataParallel(Heads(), bucket_cap_mb=1, find_unused_parameters=True)
    if compressor:
        groups = [["heads.0.weight"], ["heads.1.weight"], ["stem.weight", "stem.bias"]]
        gw.attach(ddp, compressor, groups=gw.groups.listed(groups))
    found: list[Tensor] = []
    for step in range(8):
        ddp.zero_grad()
        ddp(batch(step)[0], int(step == 0)).backward()
        if step:
            found.append(ddp.module.heads[0].weight.grad.clone())
    return found


def wait_at_each_arrival(seconds: float) -> None:
    """Has the worker begin before DDP goes on."""
    arrive = Arrivals.mark_ready

    def arrive_and_wait(arrivals: Arrivals, slot: int) -> None:
        arrive(arrivals, slot)
        sleep(seconds)

    Arrivals.mark_ready = arrive_and_wait


@scenario(2)
def the_first_gradient_of_a_pass_is_sent_when_it_is_in_its_bucket() -> None:
    """Not when DDP says first that the bucket of all that is unused is ready."""
    wait_at_each_arrival(0.02)
    for ours, theirs in zip(heads_gradients(gw.FP32()), heads_gradients(None), strict=True):
        torch.testing.assert_close(ours, theirs)


def of_options(attach: bool, finalize: bool = False, **options) -> list[Tensor]:
    """All gradients, step by step, of a DDP with these options whose memory other tensors take when it is freed."""
    ddp = DistributedDataParallel(Parts(), **options)
    if finalize:
        ddp.require_manual_backward_finalization = True
    if attach:
        gw.attach(ddp, gw.FP32(), groups=gw.groups.of(count=6))
    size, kept, found = sum(p.numel() for p in ddp.parameters()), list[Tensor](), list[Tensor]()
    for step in range(12):
        ddp.zero_grad()
        ddp(batch(step)[0]).square().mean().backward()
        if finalize:
            ddp.finalize_backward()
        found.append(torch.cat([p.grad.flatten() for p in ddp.parameters() if p.grad is not None]))
        if step > 6:
            kept += [torch.full((size,), torch.nan) for _ in range(3)]
    return found


@scenario(2)
def gradients_that_ddp_copies_together_are_sent_when_they_are_in_their_bucket() -> None:
    wait_at_each_arrival(0.005)
    together = {"batched_grad_copy": True} if "batched_grad_copy" in DDP_OPTIONS else {}
    for unused in (False, True):
        options = {"find_unused_parameters": unused, **together}
        for ours, theirs in zip(of_options(True, **options), of_options(False, **options), strict=True):
            torch.testing.assert_close(ours, theirs)


@scenario(2)
def buckets_that_ddp_makes_anew_in_each_step_have_the_means() -> None:
    if "lazy_bucket_allocation" in DDP_OPTIONS:
        for ours, theirs in zip(of_options(True, lazy_bucket_allocation=True), of_options(False), strict=True):
            assert torch.equal(ours, theirs)


@scenario(2)
def means_are_there_after_finalize_backward() -> None:
    if hasattr(DistributedDataParallel, "finalize_backward"):
        for lazy in (False, True):
            finalized = of_options(True, finalize=True, lazy_bucket_allocation=lazy)
            for ours, theirs in zip(finalized, of_options(False), strict=True):
                assert torch.equal(ours, theirs)


class Biased(nn.Module):
    """A bias beside what a checkpoint recomputes: its gradient comes before that."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.bias = nn.Linear(20, 5), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).tanh()


@scenario(2)
def a_model_that_is_recomputed_in_its_own_backward_pass_takes_one_step() -> None:
    model = Biased()
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, gw.FP32())
    for step in range(3):
        optimizer.zero_grad()
        means = torch.autograd.grad(
            (model(batch(step)[0]) * model.bias).square().mean(), [*model.parameters()], materialize_grads=True
        )
        for mean in means:
            dist.all_reduce(mean.div_(dist.get_world_size()))
        out = checkpoint(model, batch(step)[0], use_reentrant=False)
        (out * model.bias).square().mean().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], [*means])
        optimizer.step()
    assert optimizer.handle.stats().steps == 3


@scenario(2)
def a_ddp_that_averages_as_well_is_refused_whichever_came_first() -> None:
    again, in_vain = "averages the gradients of this model as well", "local steps save nothing"
    cases = [(gw.DistributedOptimizer, True, again), (gw.DistributedOptimizer, False, again)]
    for wrap, ddp_first, text in (*cases, (gw.LocalSteps, False, in_vain)):
        model = network()
        ddp = DistributedDataParallel(model) if ddp_first else None
        optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1), model, gw.TopK(0.1))
        ddp = ddp or DistributedDataParallel(model)
        inputs, _ = batch(0)
        # passes that DDP does not average
        with ddp.no_sync():
            ddp(inputs)
        with torch.no_grad():
            ddp(inputs)
        refused(RuntimeError, text, lambda ddp=ddp, inputs=inputs: ddp(inputs))
        optimizer.handle.detach()
        ddp(inputs)


@scenario(2)
def a_gradient_that_is_gone_before_it_was_averaged_is_refused() -> None:
    model = network()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    gw.DistributedOptimizer(inner, model, gw.FP32())

    def step(parameter: Tensor) -> None:
        inner.step()
        parameter.grad = None

    model.get_parameter("2.weight").register_post_accumulate_grad_hook(step)
    text = "parameter '2.weight' lost its gradient in backward, before that was averaged"
    refused(RuntimeError, text, lambda: train(model, 1, optimizer=inner))
