"""Wrong calls of the API: each ends in one line that names the mistake and the call that works."""

import gc
import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.transports.members import Members

K = gw.TopK(0.1)
KEPT: dict[str, DistributedDataParallel] = {}


@pytest.fixture(autouse=True, scope="module")
def alone():
    gw.init()
    yield
    dist.destroy_process_group()


def ddp() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(3, 4))


def model() -> nn.Module:
    return nn.Linear(3, 4)


def make():
    return model(), lambda rank, world: [torch.ones(2, 3)], lambda model, batch: model(batch).mean()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def attach(*arguments, **options) -> Callable[[], object]:
    return lambda: gw.attach(ddp(), *arguments, **options)


def optimizer(**options) -> Callable[[], object]:
    module = model()
    return lambda: gw.DistributedOptimizer(sgd(module), module, K, **options)


def made() -> gw.DistributedOptimizer:
    module = model()
    return gw.DistributedOptimizer(sgd(module), module, K)


def optimizer_of(compressor: object, **options) -> Callable[[], object]:
    module = model()
    return lambda: gw.DistributedOptimizer(sgd(module), module, compressor, **options)


def shards(compressor: gw.Compressor, **options) -> Callable[[], object]:
    """One replica of one rank."""

    def call() -> object:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        return gw.attach(fully_shard(model(), mesh=mesh["shard"]), compressor, mesh=mesh, **options)

    return call


def sharded(*codecs) -> Callable[[], object]:
    """What `compress_shards` answers."""

    def call() -> object:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
        return gw.compress_shards(fully_shard(model(), mesh=mesh), *codecs)

    return call


def local(**options) -> Callable[[], object]:
    def call() -> object:
        module = model()
        return gw.LocalSteps(sgd(module), module, K, **options)

    return call


def wrapped(kind: type, module: nn.Module, second: object) -> Callable[[], object]:
    return lambda: kind(sgd(module), second, K)


def group(*parts, slots=("weight",)) -> Callable[[], object]:
    return lambda: gw.Group(slots, *parts)


@cache
def handle() -> gw.Handle:
    return gw.attach(KEPT.setdefault("ddp", ddp()), K)


def orphan() -> gw.Handle:
    """A handle whose DDP was not kept."""
    left = gw.attach(ddp(), K)
    gc.collect()
    return left


def stepped_in_backward() -> gw.Handle:
    module = model()
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    return gw.attach(DistributedDataParallel(module), K)


def with_ddp(kind: type) -> Callable[[], object]:
    def call() -> object:
        module = ddp()
        return kind(sgd(module), module, K)

    return call


R, A = gw.Residual(), gw.AllGather()
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    # attach
    "no model": (lambda: gw.attach(None, K), "model=None is no Module; pass one, such as model=Distri"),
    "compressor first": (lambda: gw.attach(K, ddp()), "is no Compressor; pass one, such as compressor=gw.TopK(0.01)"),
    "an optimizer": (lambda: gw.attach(sgd(model()), K), "such as model=DistributedDataParallel(model)"),
    "parameters": (lambda: gw.attach(model().parameters(), K), "such as model=DistributedDataParallel(model)"),
    "a class": (attach(gw.TopK), "compressor=TopK is a class; pass an object, such as compressor=gw.TopK(0.01)"),
    "a ratio": (attach(0.01), "compressor=0.01 is no Compressor; pass one, such as compressor=gw.TopK(0.01)"),
    "a typo in text": (attach("topkk:0.1"), "there is no compressor 'topkk': did you mean topk?"),
    "memory by place": (attach(K, R), "write gw.attach(ddp, gw.TopK(0.01), memory=gw.Residual())"),
    "memory as text": (attach(K, memory="residual"), "pass one, such as memory=gw.Residual()"),
    "a memory's class": (attach(K, memory=gw.Residual), "memory=Residual is a class; pass an object, such as"),
    "no communicator": (attach(K, communicator=R), "pass one, such as communicator=gw.AllGather()"),
    "an option's typo": (attach(K, comunicator=A), "no option named 'comunicator': did you mean communicator?"),
    "Horovod's names": (optimizer(named_parameters=[]), "no option named 'named_parameters': did you mean model?"),
    "Horovod's compression": (attach(compression=K), "no option named 'compression': did you mean compressor?"),
    "DDP's group": (optimizer(group=None), "no option named 'group': did you mean process_group?"),
    "a group in attach": (attach(K, process_group=None), "no option named 'process_group': did you mean transport?"),
    "the model again": (attach(K, module=None), "there is no option named 'module': did you mean model?"),
    "the command line's dense": (attach("dense"), "'dense' is a word of the command line; pass gw.FP32()"),
    "the command line's auto": (attach("Auto"), "leave the compressor out, as in gw.attach(ddp)"),
    "rows and more": (attach(K, rows="quantized:4+residual+gravac"), "more; leave that out"),
    "rows in groups": (attach(K, rows="quantized:4@25mb"), "rows have a compressor and a memory, and rows='quanti"),
    "another's option": (attach(K, ratio=0.1), "there is no option named 'ratio': there are memory, communicator"),
    "a list": (attach([gw.BF16(), K]), "is no Compressor; pass one"),
    "one candidate": (attach(candidates=K), "pass one, such as candidates=[gw.BF16(), gw.TopK(0.01)]"),
    "candidates as text": (attach(candidates=["topk"]), "such as candidates=[gw.BF16(), gw.TopK(0.01)]"),
    "both": (attach(K, candidates=[K]), "leave the compressor out, or name it alone"),
    "a large fidelity": (attach(fidelity=2), "use e.g. fidelity=0.01"),
    "fidelity as text": (attach(fidelity="0.01"), "fidelity='0.01' is no float; pass one, such as fidelity=0.01"),
    "no compressor": (attach(controller=gw.GraVAC()), "GraVAC needs a compressor to start from, such as gw.TopK(0.01)"),
    "native and weighted": (attach(gw.NATIVE, weight=2.0), "which weight= rules out; leave that out, or use FP32()"),
    "native and elastic": (attach(gw.NATIVE, elastic=True), "which elastic=True rules out; leave that out"),
    "native and static": (
        lambda: gw.attach(DistributedDataParallel(model(), static_graph=True), gw.NATIVE),
        "which DDP(static_graph=True) rules out; leave that out",
    ),
    "no compressor, as DDP reduces": (
        attach(gw.NATIVE, controller=gw.GraVAC()),
        "GraVAC needs a compressor to start from, such as gw.TopK(0.01)",
    ),
    "unused buckets": (
        lambda: gw.attach(DistributedDataParallel(model(), skip_all_reduce_unused_params=True), K),
        "hands no unused bucket over; leave it out, find_unused_parameters=True will do",
    ),
    "a controller's class": (attach(K, controller=gw.GraVAC), "such as controller=gw.GraVAC()"),
    "no controller for it": (attach(gw.BF16(), controller=gw.GraVAC()), "use attach(ddp, TopK(0.1), controller="),
    "groups as a number": (attach(K, groups=4), "such as groups=gw.groups.of(megabytes=25)"),
    "dense as names": (attach(K, dense=["weight"]), "pass e.g. dense=lambda name, p: True"),
    "seed as text": (attach(K, seed="7"), "seed='7' is no int; pass one, such as seed=0"),
    "torch's group": (attach(K, transport=object()), "such as transport=gw.ProcessGroup.own()"),
    "a scale": (attach(K, scaler=1024.0), "such as scaler=torch.amp.GradScaler()"),
    "a mesh's shape": (attach(K, mesh=(2, 4)), "such as mesh=init_device_mesh("),
    "DDP's option": (attach(K, find_unused_parameters=True), "pass it to DistributedDataParallel(model, find_unused"),
    "elastic alone": (attach(elastic=True), "name a compressor, such as gw.TopK(0.01)"),
    "elastic as text": (attach(K, elastic="yes"), "elastic='yes' is no bool; pass one, such as elastic=True"),
    "a vote's memory": (attach(gw.SignSGD(), memory=R), "use memory=NoMemory(), or EFSignSGD() with Residual()"),
    "what cannot be added": (attach(K, communicator=gw.AllReduce()), "pair it with AllGather() or ScatterReduce()"),
    "a plan and more": (attach(gw.NATIVE, memory=R), "what is dense; pass it alone"),
    "a part twice": (attach("topk+residual", memory=R), "keep one of them"),
    # optimizers
    "swapped": (lambda: gw.DistributedOptimizer(model(), sgd(model()), K), "optimizer=Linear("),
    "swapped local": (lambda: gw.LocalSteps(model(), sgd(model()), K), "inner_optimizer=SGD(...) in gw.LocalSteps(opt"),
    "DDP": (with_ddp(gw.DistributedOptimizer), "averages gradients itself; pass gw.DistributedOptimizer a model with"),
    "optimizers in backward": (stepped_in_backward, "optimizers step this DDP's parameters in backward"),
    "DDP local": (with_ddp(gw.LocalSteps), "or use gw.attach(ddp, gw.TopK(0.01))"),
    "no model but one": (wrapped(gw.DistributedOptimizer, model(), K), "is no Module; pass one, such as model="),
    "no model local": (wrapped(gw.LocalSteps, model(), None), "model=None is no Module; pass one, such as model="),
    "an optimizer's class": (lambda: gw.DistributedOptimizer(torch.optim.SGD, model(), K), "optimizer=SGD is a class"),
    "another model": (wrapped(gw.DistributedOptimizer, model(), model()), "make it of parameters of the model that"),
    "another model local": (wrapped(gw.LocalSteps, model(), model()), "the optimizer holds no parameter that this mod"),
    "a backend": (optimizer(process_group="gloo"), "such as process_group=torch.distributed.new_group()"),
    "a copy": (lambda: deepcopy(made()), "a DistributedOptimizer has no copy; copy its `inner`, or save state_dict()"),
    "saved whole": (lambda: pickle.dumps(made()), "has no copy; copy its `inner`, or save state_dict()"),
    "another inner optimizer": (
        lambda: setattr(made(), "inner", sgd(model())),
        "cannot change its inner optimizer: call handle.detach(), and wrap the new one",
    ),
    "by place": (
        lambda: gw.DistributedOptimizer(sgd(model()), model(), K, R),
        "too many positional",
    ),
    # local steps
    "an outer rate": (local(outer=0.7), "outer=0.7 makes no optimizer; pass outer=gw.Outer(lr=0.7), or a function"),
    "an outer optimizer": (local(outer=sgd(model())), "makes no optimizer; pass outer=gw.Outer(lr=0.7)"),
    "an outer class": (local(outer=gw.Outer), "makes no optimizer; pass outer=gw.Outer(lr=0.7)"),
    "outer as text": (lambda: gw.Outer(lr="0.7"), "Outer(lr='0.7') takes a finite number, e.g. lr=0.7"),
    "a negative rate": (lambda: gw.Outer(lr=-1), "use lr=0.7, momentum=0.9"),
    "signs without a rate": (lambda: gw.SignDescent([]), "write gw.SignDescent(model.parameters(), lr=1e-3)"),
    "steps up": (lambda: gw.SignDescent(model().parameters(), lr=-1e-3), "are no step down; use e.g. lr=1e-3"),
    "no coefficients": (lambda: gw.DCTTopK(k=0), "use k=32, chunk=64"),
    "a momentum that stays": (lambda: gw.Dion(mu=1), "mu=1 must lie in [0, 1), e.g. mu=0.95"),
    "updates in local steps": (
        lambda: gw.LocalSteps(sgd(alone := model()), alone, gw.Dion()),
        "makes updates of gradients, and local steps average movements of parameters; use e.g. PowerSGD(1 / 6)",
    ),
    "votes in local steps": (
        lambda: gw.LocalSteps(sgd(alone := model()), alone, gw.Signum()),
        "makes votes of gradients, and local steps average movements of parameters; use e.g. EFSignSGD()",
    ),
    "updates by one rank": (
        lambda: gw.attach(DistributedDataParallel(model()), gw.Dion()),
        "makes updates of gradients, and one rank exchanges none; use e.g. PowerSGD(1 / 6)",
    ),
    "updates by one rank's optimizer": (
        optimizer_of(gw.Dion()),
        "makes updates of gradients, and one rank exchanges none; use e.g. PowerSGD(1 / 6)",
    ),
    "no controller for one rank's optimizer": (
        optimizer_of(gw.PowerSGD(2), controller=gw.GraVAC()),
        "controller=",
    ),
    "native without DDP": (optimizer_of(gw.NATIVE), "a native plan leaves reducing to DDP"),
    "another model's plan": (
        optimizer_of(gw.Plan((gw.Group(("other",), gw.FP32(), gw.NoMemory(), gw.AllReduce()),))),
        "the plan names parameter 'other', which the model lacks",
    ),
    "one rank's rows": (optimizer_of(K, rows="quantized:8"), "rows= is for Embedding(sparse=True)"),
    "one rank's vote": (optimizer_of(gw.SignSGD(), weight=2.0), "every rank has one vote"),
    "updates of shards": (shards(gw.Dion()), "FSDP2's ranks have shards of a matrix each"),
    "no controller for one replica": (shards(gw.PowerSGD(2), controller=gw.GraVAC()), "controller="),
    "native without DDP, in shards": (shards(gw.NATIVE), "a native plan leaves reducing to DDP"),
    "no steps": (local(inner_steps=0), "use inner_steps=1 or more, or fewer fragments"),
    "half a step": (local(inner_steps=2.5), "LocalSteps(inner_steps=2.5) takes a whole number"),
    "H": (local(H=30), "there is no option named 'H': there are "),
    "a long delay": (local(inner_steps=4, delay=9), "use 0 to 4"),
    "mix as text": (local(mix="half"), "LocalSteps(mix='half') takes a finite number, or None"),
    "many fragments": (local(fragments=99), "use 1 to as many"),
    "fragments as names": (local(fragments=["weight"]), "such as fragments=[model.a, model.b], or"),
    "half fragments": (local(fragments=2.5), "is no int; pass one, such as fragments=4, or [model.a, model.b]"),
    "a controller's text": (
        lambda: gw.LocalSteps(sgd(alone := model()), alone, "topk:0.1+gravac"),
        "controllers are for exchanges of every step; leave GraVAC out of 'topk:0.1+gravac'",
    ),
    "a controller": (local(controller=gw.GraVAC()), "there is no option named 'controller'"),
    "not sharded": (lambda: gw.compress_shards(ddp(), gw.QSGD()), "call fully_shard(model) first"),
    "no codec": (sharded(None), "such as gradients=gw.QSGD(), or gradients=gw.FP32() for as it is"),
    "no codec of weights": (sharded(gw.QSGD(), None), "such as weights=gw.QSGD(), or weights=gw.FP32() for as it is"),
    "a codec as text": (
        sharded("quantized:8"),
        "gradients='quantized:8' is no Compressor; pass one, such as gradients",
    ),
    "shards swapped": (lambda: gw.compress_shards(gw.QSGD(), model()), "such as model=fully_shard(model)"),
    # compressors, memories, controllers
    "per cent": (lambda: gw.TopK("1%"), "TopK(ratio='1%') takes a finite number, e.g. ratio=0.01"),
    "more than all": (lambda: gw.TopK(2), "it lies in (0, 1], e.g. ratio=0.01"),
    "ratios": (lambda: gw.TopK(ratios=0.1), "write TopK(ratio=0.01, value_bits=32)"),
    "too many": (lambda: gw.TopK(0.1, 4, 7), "too many positional arguments; write TopK(ratio=0.01, value_bits=32)"),
    "bits of values": (lambda: gw.TopK(0.1, value_bits=5), "takes 32 or 4, e.g. value_bits=32"),
    "rank 0": (lambda: gw.PowerSGD(0), "use e.g. rank=4 or rank=1/6"),
    "9 bits": (lambda: gw.Quantized(9), "use 2, 3, 4 or 8"),
    "a bit": (lambda: gw.Quantized(bit=4), "write Quantized(bits=4, block=64)"),
    "an inner text": (lambda: gw.Interleaved("topk", K), "takes a Codec, e.g. first=AllDimensionTopK("),
    "much decay": (lambda: gw.Residual(decay=2), "must lie in (0, 1]"),
    "a limit in 8 bits": (lambda: gw.Residual(limit=4, dtype=torch.int8), "use dtype=torch.bfloat16"),
    "descending": (lambda: gw.GraVAC(min_factor=100, max_factor=10), "use e.g. GraVAC(min_factor=10, max_factor="),
    "a budget": (lambda: gw.LGreCo(budget="loss"), "takes 'error' or 'bytes' or 'seconds'"),
    "half of it": (lambda: gw.Accordion(low=K), "missing a required argument: 'high'; write Accordion(low, high,"),
    "no option": (lambda: gw.Exclusive(4), "too many positional arguments; write Exclusive()"),
    # plans and groups
    "a group's text": (group(K, R, "allgather"), "such as communicator=gw.AllGather()"),
    "a group's nothing": (group(K, None, A), "memory=None is no Memory; pass one, such as memory=gw.Residual()"),
    "a group's class": (group(gw.TopK, R, A), "compressor=TopK is a class; pass an object"),
    "one slot": (group(K, R, A, slots="weight"), "is no tuple; pass one, such as slots=("),
    "a plan of compressors": (lambda: gw.Plan([K]), "is no tuple; pass one, such as groups=(gw.Group("),
    "no file": (lambda: gw.Plan.load("/nowhere.json"), "/nowhere.json cannot be read: No such file or directory"),
    "a dictionary": (lambda: gw.Plan.from_json({"groups": []}), "is no str; pass one"),
    "no JSON": (lambda: gw.Plan.from_json("topk"), "this is no plan that Plan.to_json() wrote"),
    "another JSON": (
        lambda: gw.Plan.from_json(json.dumps({"version": 1})),
        "this is no plan that Plan.to_json() wrote",
    ),
    "megabytes by place": (lambda: gw.groups.of(25), "write gw.groups.of(megabytes=25)"),
    "no size": (gw.groups.of, "use groups.of(megabytes=25) or of(count=4)"),
    "megabytes as text": (lambda: gw.groups.of(megabytes="25"), "is no float; pass one, such as megabytes=25"),
    "megabytes that are none": (
        lambda: gw.groups.of(megabytes=float("nan")),
        "use megabytes=25, or 0 for every",
    ),
    "a ratio for a count": (lambda: gw.groups.partial(0.01), "is no int; pass one, such as threshold=65536"),
    "a count as text": (lambda: gw.groups.partial("65536"), "is no int; pass one, such as threshold=65536"),
    "nothing dense": (lambda: gw.groups.partial(0), "leaves nothing dense; use e.g. threshold=65536"),
    "half a group": (lambda: gw.groups.of(count=2.5), "is no int; pass one, such as count=4"),
    "a misspelt name": (
        attach(K, groups=gw.groups.listed([["weight", "bias"], ["wieght"]])),
        "the groups name 'wieght', which is not reduced; use names as 'weight'",
    ),
    "a misspelt name beside rules": (
        attach(rules=[("weight", K), ("*", gw.FP32())], groups=gw.groups.listed([["weight", "biass"], ["bias"]])),
        "the groups name 'biass', which is not reduced",
    ),
    "one list": (lambda: gw.groups.listed(["weight"]), "write gw.groups.listed([['weight']])"),
    "a plan's compressor": (lambda: handle().replan(K), 'is no Plan; pass one, such as plan=gw.Plan.load("plan.json")'),
    # bench and plan
    "a model to time": (lambda: gw.bench(model(), [K]), "cannot be imported by the ranks: define it at the top of a"),
    "one text to time": (lambda: gw.bench(make, "topk"), 'such as configurations=["dense", gw.TopK(0.01)]'),
    "one to time": (lambda: gw.bench(make, K), 'such as configurations=["dense", gw.TopK(0.01)]'),
    "a number to time": (lambda: gw.bench(make, [3]), "pass a compressor, such as gw.TopK(0.01), or a text"),
    "a class to time": (lambda: gw.bench(make, [gw.TopK]), "pass a compressor, such as gw.TopK(0.01), or a text"),
    "a speed": (lambda: gw.bench(make, [K], link="fast"), "write a rate in kbit (from 0.008), mbit or gbit"),
    "a cluster": (lambda: gw.bench(make, [K], play="64"), "write ranks@link, such as 64@25gbit"),
    "hosts as text": (lambda: gw.bench(make, [K], hosts="2"), "hosts='2' is no int; pass one, such as hosts=2"),
    "no hosts": (lambda: gw.bench(make, [K], hosts=0), "give 1 or more"),
    "no steps to time": (lambda: gw.bench(make, [K], steps=0), "give 1 or more of both"),
    "a device": (lambda: gw.bench(make, [K], device="tpu"), "device is cpu or cuda, not 'tpu'"),
    "an objective": (lambda: gw.plan(make, objective="loss"), "is neither 'progress', per second, nor 'step'"),
    "one to plan with": (lambda: gw.plan(make, candidates=K), "is no list; pass one"),
    "text for Auto": (lambda: gw.Auto(["topk"]), "such as candidates=[gw.BF16(), gw.TopK(0.01)]"),
    # states
    "no ranks": (lambda: gw.reshard([handle().state_dict()], 0), "use e.g. gw.reshard(states, 4)"),
    "one state": (lambda: gw.reshard(handle().state_dict(), 2), "such as state=handle.state_dict()"),
    "a model's state": (lambda: handle().load_state_dict(model().state_dict()), "pass what handle.state_dict() retur"),
    "a path": (lambda: handle().load_state_dict("gradwire.pt"), "such as state=handle.state_dict()"),
    "save swapped": (lambda: gw.save("x.pt", handle().state_dict()), "such as state=handle.state_dict()"),
    "no checkpoint": (lambda: handle().stateful("/nowhere"), "pass the folder in which dcp.save() made one"),
    "a key alone": (lambda: handle().stateful(key="g"), "pass the checkpoint's path too: stateful(path, key=...)"),
    # a DDP that was not kept
    "stateful of none": (lambda: orphan().stateful(), "was garbage collected: keep a reference to ddp"),
    "accumulate of none": (lambda: orphan().accumulate(), "was garbage collected: keep a reference to ddp"),
    "paused of none": (lambda: orphan().paused(), "was garbage collected: keep a reference to ddp"),
    # the rest
    "no step": (lambda: handle().trace(0), "steps=0 records nothing; use 1 or more"),
    "steps as text": (lambda: handle().trace("3"), "steps='3' is no int; pass one, such as steps=1"),
    "straggling": (lambda: handle().stragglers(0.5), "give 1 or more, of what the ranks' median takes"),
    "hosts of 3": (lambda: gw.ProcessGroup.by_host(3), "use a divisor of 1"),
    "hosts of 0": (lambda: gw.ProcessGroup.by_host(0), "use a divisor of 1"),
    "no group": (lambda: gw.ProcessGroup(None), "such as group=torch.distributed.new_group()"),
    "no replica": (lambda: gw.Mesh({"host": gw.Threads.group(1)[0]}), 'write gw.Mesh({"replica": transport})'),
    "seconds": (
        lambda: gw.Rendezvous(dist.HashStore(), timeout=60),
        "timeout=60 is no timedelta; pass one, such as timeout=timedelta(minutes=10)",
    ),
    "an address": (lambda: gw.Rendezvous("tcp://x"), "such as store=torch.distributed.TCPStore(host, port)"),
    "a name": (lambda: gw.Topk(0.1), "there is no name in gradwire like 'Topk': did you mean TopK?"),
}


@pytest.mark.parametrize(("call", "right"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_is_answered_in_one_line_with_the_right_one(call: Callable[[], object], right: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)) as error:
        call()
    assert right in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 250


def test_a_mistake_of_all_ranks_is_not_that_of_one_who_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of an elastic job would meet again, and make it again."""
    monkeypatch.setattr(Members, "beside_newcomers", True)
    call, right = CALLS["native and elastic"]
    with pytest.raises(ValueError, match=right):
        call()
