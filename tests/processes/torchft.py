"""torchft's `DiLoCo` beside Gradwire's, between real processes over gloo."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradwire as gw
from tests.processes.local_steps import inner
from tests.processes.scenarios import flat, network, scenario, train


class Manager:
    """torchft's manager for replicas that stay: it averages over all ranks, and everything is committed."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self._step = 0

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> "Done":
        """The mean, in place, for the caller of wait()."""
        dist.all_reduce(tensor)
        tensor.div_(dist.get_world_size())
        return Done()

    def should_commit(self) -> bool:
        self._step += 1
        return True

    def current_step(self) -> int:
        return self._step

    def start_quorum(self) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def register_state_dict_fn(self, key: str, load: Callable, save: Callable) -> None: ...


class Done:
    def wait(self) -> bool:
        return True


OUTER = {"lr": 0.7, "momentum": 0.9}


def theirs(fragments: int, steps: int, **settings) -> tuple[list[float], Tensor]:
    from torchft.local_sgd import DiLoCo

    model = network()
    optimizer = inner(model)
    parts = [model] if fragments == 1 else [model[0], model[2:]]
    outers = [torch.optim.SGD(part.parameters(), **OUTER, nesterov=True) for part in parts]
    with DiLoCo(Manager(), parts, optimizer, outers, **settings):
        return train(model, steps, optimizer=optimizer), flat(model)


def ours(fragments: int, steps: int, **settings) -> tuple[list[float], Tensor]:
    model = network()
    parts = 1 if fragments == 1 else [model[0], nn.ModuleList([model[2:]])]
    optimizer = gw.LocalSteps(inner(model), model, outer=gw.Outer(**OUTER), fragments=parts, **settings)
    return train(model, steps, optimizer=optimizer), flat(model)


def both_local_sgd(steps: int, every: int) -> tuple[tuple[list[float], Tensor], tuple[list[float], Tensor]]:
    from torchft.local_sgd import LocalSGD

    model, other = network(), network()
    optimizer = inner(other)
    averaging = gw.LocalSteps(inner(model), model, inner_steps=every, outer=gw.Outer(lr=1.0, momentum=0))
    mine = train(model, steps, optimizer=averaging), flat(model)
    with LocalSGD(Manager(), other, optimizer, sync_every=every):
        return mine, (train(other, steps, optimizer=optimizer), flat(other))


def check_equal(a: tuple[list[float], Tensor], b: tuple[list[float], Tensor]) -> None:
    torch.testing.assert_close(a[0], b[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(a[1], b[1], rtol=0, atol=1e-6)


@scenario(2)
def twenty_rounds_are_torchfts() -> None:
    check_equal(ours(1, 100, inner_steps=5), theirs(1, 100, sync_every=5))


@scenario(2)
def fragments_are_torchfts() -> None:
    check_equal(ours(2, 120, inner_steps=6), theirs(2, 120, sync_every=6))


@scenario(2)
def averaging_parameters_is_torchfts_local_sgd() -> None:
    check_equal(*both_local_sgd(100, every=5))
