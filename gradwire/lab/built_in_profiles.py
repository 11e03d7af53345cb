"""The set-up on which Cupcake was measured, written by hand (Wang et al., MLSys 2023, sections 2 and 5): V100 GPUs,
three models, four compressors.

Published there: ResNet-50's iteration (48 ms), the 56 ms that float32 adds to it on 8 GPUs over PCIe, and the curves of
the compressors: flat up to 4 MB, then linear. The other iterations follow from what NVIDIA publishes for V100 32 GB in
float32, by the models' operations. How long tensors take in backward follows from their operations, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from gradwire.communicators import AllReduce
from gradwire.compressors import DGC, FP32, Compressor, EFSignSGD, OneBit, RandomK
from gradwire.memories import NoMemory, Residual
from gradwire.plans import Group, default_communicator
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.costs import CostTable
from gradwire.schedule.link_costs import between_hosts
from gradwire.schedule.profile import Profile
from gradwire.schedule.profiled import Candidate, SlotTime
from gradwire.tuner.rehearsal import expected

MS = 1e-3
FLAT_ELEMENTS = 1 << 20
"""Up to 4 MB a kernel's launch is what costs."""

PCIE = Cluster(8, 25e9 / 8, gpus_per_host=8, inside_bytes_per_s=2.95e9, inside_latency_s=20e-6)
"""One server. Its speed is what makes ResNet-50's float32 step wait the published 56 ms. Latencies are assumed."""


@dataclass(frozen=True)
class ParameterWork:
    """A parameter, and how often each of its elements is used for one sample."""

    name: str
    shape: tuple[int, ...]
    uses: int = 0
    """Times that each element is used for one sample."""

    @property
    def work(self) -> int:
        return prod(self.shape) * self.uses


CURVES: tuple[tuple[Compressor, float, float], ...] = (
    (RandomK(0.01), 0.2, 0.07),
    (DGC(0.01), 0.45, 0.07),
    (EFSignSGD(), 0.25, 0.25),
    (OneBit(), 0.6, 0.25),
)
"""Compressors, and the milliseconds that each encodes and decodes up to 4 MB."""

_RESNET_101_S = 32 / 356 * 7.83 / 4.09
"""32 images at ResNet-50's 356 images/s (DeepLearningExamples, resnet50v1.5), by GFLOPs."""
_BERT_BASE_S = 1024 / (7.56 * 384) * 85 / 302
"""1024 tokens at BERT-large's 7.56 sentences/s of 384 (DeepLearningExamples, BERT), by millions in matrices."""


def resnet(blocks: tuple[int, ...], classes: int) -> Iterator[ParameterWork]:
    """A ResNet of bottlenecks (He et al., CVPR 2016), from input to output."""
    yield from _convolution("stem", (64, 3, 7, 7), 112**2)
    width = 64
    # four stages: twice as wide, and half as long on a side, each
    for stage, count in enumerate(blocks):
        planes, uses = 64 << stage, (56 >> stage) ** 2
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            yield from _convolution(f"{name}.1", (planes, width, 1, 1), uses)
            yield from _convolution(f"{name}.2", (planes, planes, 3, 3), uses)
            yield from _convolution(f"{name}.3", (4 * planes, planes, 1, 1), uses)
            if not block:
                yield from _convolution(f"{name}.shortcut", (4 * planes, width, 1, 1), uses)
            width = 4 * planes
    yield from linear("classes", classes, width)


def bert_base() -> Iterator[ParameterWork]:
    """BERT-base with the two outputs for SQuAD, from input to output."""
    yield from bert(12, 768)
    yield from linear("answers", 2, 768)


def bert(layers: int, width: int) -> Iterator[ParameterWork]:
    """BERT (Devlin et al., NAACL 2019) without outputs, from input on."""
    for name, rows in (("words", 30522), ("positions", 512), ("types", 2)):
        yield ParameterWork(name, (rows, width))
    yield from norm("embeddings", width)
    # attention, then the feed-forward layers
    for layer in range(layers):
        for name in ("query", "key", "value", "output"):
            yield from linear(f"{layer}.{name}", width, width)
        yield from norm(f"{layer}.attention", width)
        yield from linear(f"{layer}.up", 4 * width, width)
        yield from linear(f"{layer}.down", width, 4 * width)
        yield from norm(f"{layer}.feedforward", width)


MODELS = {
    "resnet50": (partial(resnet, (3, 4, 6, 3), 10), 48 * MS),
    "resnet101": (partial(resnet, (3, 4, 23, 3), 1000), _RESNET_101_S),
    "bert-base": (bert_base, _BERT_BASE_S),
}
"""What makes the tensors, and the seconds of an iteration on one GPU."""


def profile(model: str) -> Profile:
    """The published job on 8 GPUs over PCIe, as Gradwire's own engine would run it; `model` is one of MODELS."""
    tensors, iteration_s = MODELS[model]
    # dense first; then each curve's compressor
    ways = [(Group((), FP32(), NoMemory(), AllReduce()), 0.0, 0.0)]
    for compressor, encode_ms, decode_ms in CURVES:
        ways.append((Group((), compressor, Residual(), default_communicator(compressor)), encode_ms, decode_ms))
    candidates = tuple(
        Candidate(way, _curve(encode_ms), _curve(decode_ms), expected(way)) for way, encode_ms, decode_ms in ways
    )
    return profile_on(PCIE, tuple(tensors()), iteration_s, candidates)


def profile_on(
    cluster: Cluster,
    tensors: tuple[ParameterWork, ...],
    iteration_s: float,
    candidates: tuple[Candidate, ...],
    contention: float = 0.0,
) -> Profile:
    """The profile of a job on a cluster of GPUs: a third of an iteration is the forward pass, the rest the backward
    pass."""
    return Profile(
        slots=in_backward(tensors, iteration_s * 2 / 3),
        forward_s=iteration_s / 3,
        optimizer_s=0.0,
        candidates=candidates,
        collectives=between_hosts(candidates, cluster.network, "cuda"),
        ranks=cluster.ranks,
        device="cuda",
        contention=contention,
    )  # fmt: skip


def _curve(milliseconds: float) -> CostTable:
    sizes = (float(FLAT_ELEMENTS), 2.0 * FLAT_ELEMENTS)
    return CostTable(sizes, (milliseconds * MS, 2 * milliseconds * MS))


def in_backward(tensors: tuple[ParameterWork, ...], backward_s: float) -> tuple[SlotTime, ...]:
    """Slots in the order of backward, each ready when its share of the operations is done."""
    order = tensors[::-1]
    done = np.cumsum([tensor.work for tensor in order]) / sum(tensor.work for tensor in order)
    return tuple(SlotTime(t.name, t.shape, float(share) * backward_s) for t, share in zip(order, done, strict=True))


def _convolution(name: str, shape: tuple[int, ...], uses: int) -> Iterator[ParameterWork]:
    yield ParameterWork(f"{name}.weight", shape, uses)
    yield from norm(name, shape[0])


def norm(name: str, width: int) -> Iterator[ParameterWork]:
    """A normalization's two vectors."""
    yield ParameterWork(f"{name}.norm.weight", (width,))
    yield ParameterWork(f"{name}.norm.bias", (width,))


def linear(name: str, rows: int, columns: int) -> Iterator[ParameterWork]:
    """A linear layer's matrix and vector."""
    yield ParameterWork(f"{name}.weight", (rows, columns), 1)
    yield ParameterWork(f"{name}.bias", (rows,))
