"""What torch.compile makes of a model must train as the model does: scenarios as in `scenarios`."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from tests.processes.scenarios import batch, network, refused, scenario, train

Compile = Callable[[nn.Module], nn.Module]


def not_at_all(model: nn.Module) -> nn.Module:
    return model


def around(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # pyright: ignore[reportReturnType]


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def of_ddp(compiled: Compile) -> tuple[nn.Module, gw.Handle]:
    ddp = DistributedDataParallel(network())
    handle = gw.attach(ddp, gw.TopK(0.2))
    train(compiled(ddp))
    return ddp, handle


def in_ddp(compiled: Compile) -> tuple[nn.Module, gw.Handle]:
    ddp = DistributedDataParallel(compiled(network()))
    handle = gw.attach(ddp, gw.TopK(0.2))
    train(ddp)
    return ddp, handle


def of_an_optimizer(compiled: Compile) -> tuple[nn.Module, gw.Handle]:
    model = compiled(network())
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, gw.TopK(0.2))
    train(model, optimizer=optimizer)
    return model, optimizer.handle


def of_local_steps(compiled: Compile) -> tuple[nn.Module, gw.Handle]:
    model = compiled(network())
    optimizer = gw.LocalSteps(torch.optim.SGD(model.parameters(), 0.1), model, gw.TopK(0.2), inner_steps=2)
    train(model, optimizer=optimizer)
    return model, optimizer.handle


def of_shards(compiled: Compile) -> tuple[nn.Module, gw.Handle]:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = network()
    fully_shard(model, mesh=mesh["shard"])
    handle = gw.attach(model, gw.TopK(0.2), mesh=mesh)
    train(compiled(model), model=model)
    return model, handle


def values(model: nn.Module) -> Tensor:
    whole = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole])


@scenario(2)
def a_compiled_model_trains_as_the_model_does() -> None:
    for front_end in (of_ddp, in_ddp, of_an_optimizer, of_local_steps, of_shards):
        trained, plans = [], []
        for compiled in (not_at_all, around, *[in_place] * (front_end is of_an_optimizer)):
            torch.compiler.reset()
            model, handle = front_end(compiled)
            trained.append(values(model))
            plans.append(handle.plan)
            handle.verify()
            handle.detach()
        assert all(torch.equal(trained[0], other) for other in trained), front_end
        # the same names, so that rules, plans and states hold for both
        assert plans[1:] == plans[:1] * len(plans[1:]), front_end


@scenario(2)
def a_model_of_local_steps_is_compiled_whole_exported_and_scripted() -> None:
    model = network()
    optimizer = gw.LocalSteps(torch.optim.SGD(model.parameters(), 0.1), model, gw.TopK(0.2), inner_steps=2)
    inputs, _ = batch(0)
    torch.compile(model, backend="eager", fullgraph=True)(inputs).sum().backward()
    torch.export.export(model, (inputs,), strict=True)
    # a pass that is not compiled sees that no DDP is around
    model(inputs)
    torch.jit.script(copy.deepcopy(model))
    optimizer.handle.detach()


@scenario(2)
def a_ddp_of_all_ranks_is_refused_by_local_steps_compiled_too() -> None:
    torch.compiler.reset()
    model = network()
    optimizer = gw.LocalSteps(torch.optim.SGD(model.parameters(), 0.1), model, gw.TopK(0.2), inner_steps=2)
    ddp = DistributedDataParallel(torch.compile(model, backend="eager"))  # pyright: ignore[reportArgumentType]
    refused(RuntimeError, "local steps save nothing", lambda: ddp(batch(0)[0]))
    optimizer.handle.detach()
