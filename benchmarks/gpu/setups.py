"""Set-ups in which the published systems were measured: model, cluster and compressors, and the time of a V100 for a
step without communication.

That time follows by operations from the figures that NVIDIA publishes for two models in float32
(DeepLearningExamples). ACP-SGD was measured on other cards, whose times were not to be had.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gradwire.schedule.cluster import Cluster
from gradwire.wire import ETHERNET

_NVLINK, _TEN_GBIT = 150e9, 10e9 / 8
PCIE = Cluster(8, 2.95e9 / ETHERNET, latency_s=20e-6)
"""Cupcake's server: eight GPUs with links of the speed that makes its ResNet-50 wait the published 56 ms in float32."""
SERVERS = Cluster(64, 25e9 / 8, gpus_per_host=8, inside_bytes_per_s=_NVLINK)
BOXES = Cluster(32, _TEN_GBIT, gpus_per_host=4)
SINGLE = Cluster(8, _TEN_GBIT)
MANY = Cluster(32, _TEN_GBIT, gpus_per_host=4, inside_bytes_per_s=_NVLINK)

_RESNET_50, _BERT_LARGE = 1 / 356, 1 / (7.56 * 384)
"""Seconds of a V100 in float32: of an image, and of a token."""
V100_S = {
    "resnet50": _RESNET_50,
    "resnet101": _RESNET_50 * 7.80 / 4.09,
    "resnet152": _RESNET_50 * 11.51 / 4.09,
    "cifar-resnet101": _RESNET_50 * 2.51 / 4.09,
    "vgg16": _RESNET_50 * 0.44 / 4.09,
    "vit-large": _RESNET_50 * 59.65 / 4.09,
    "bert-base": _BERT_LARGE * 109 / 302,
    "bert-large": _BERT_LARGE * 334 / 302,
    "gpt2-large": _BERT_LARGE * 772 / 302,
    "lstm": _BERT_LARGE * 51 / 302,
}
"""Of an image of the size that is measured, by GFLOPs of a forward pass, or of a token, by millions of products."""
TOKENS = ("bert-base", "bert-large", "gpt2-large", "lstm")
"""The models whose seconds are of tokens. BERT predicts masked words here, which the published one does not."""


class Setup(NamedTuple):
    """One measurement of a published system: a model, its batch, the cluster, and the configurations compared."""

    model: str
    batch: int
    size: int
    cluster: Cluster
    ways: Sequence[str]
    """As the command line writes them; plain DDP is always among them."""

    @property
    def label(self) -> str:
        """As tables name it."""
        return f"{self.model}, {self.batch} x {self.size}, {self.cluster.ranks} ranks"

    @property
    def where(self) -> str:
        """A suffix for names of its rows, for a system's set-ups compare the same configurations."""
        return f", {self.model} on {self.cluster.ranks} ranks"

    def scaled(self, faster: float) -> Cluster:
        """The cluster with links and latencies that are so many times as fast."""
        there = self.cluster
        return replace(
            there, bytes_per_s=there.bytes_per_s * faster, latency_s=there.latency_s / faster,
            inside_bytes_per_s=there.inside_bytes_per_s * faster, inside_latency_s=there.inside_latency_s / faster,
        )  # fmt: skip

    @property
    def v100_s(self) -> float:
        """Seconds of a step without communication on a V100."""
        return V100_S[self.model] * self.batch * (self.size if self.model in TOKENS else 1)


_CUPCAKE = [("resnet50", 32, 224), ("resnet101", 32, 224), ("bert-base", 8, 128)]
_SEARCHED, _OTHERS = ["dgc:0.01", "efsignsgd"], ["randomk:0.01", "onebit"]
_ACPSGD = [("resnet50", 64, 224, 4), ("resnet152", 32, 224, 4), ("bert-base", 32, 64, 32), ("bert-large", 8, 64, 32)]
_ADTOPK = [("resnet152", 32, 224), ("bert-large", 4, 384), ("gpt2-large", 2, 1024), ("vit-large", 8, 224)]
_SELECTIONS = ["topk:0.01", "alldimensiontopk:0.01", "interleaved", "topk:0.01@hybrid", "interleaved@hybrid"]
_GRAVAC = [("cifar-resnet101", 32, 32), ("vgg16", 32, 32), ("lstm", 20, 35)]
_FACTORS = [f"{name}:{ratio}@0mb" for name in ("topk", "dgc") for ratio in (0.1, 0.01, 0.001)]


def _by_groups() -> list[str]:
    """Layer by layer as in GRACE, and an even split; of two compressors, also one group and the searched plan."""
    most = [f"{name}@{groups}" for name in _SEARCHED for groups in ("planned", "0mb", "4", "1")]
    return [*most, *(f"{name}@{groups}" for name in _OTHERS for groups in ("0mb", "4"))]


def _low_rank(rank: int) -> list[str]:
    """PowerSGD of torch and here, then ACP-SGD: with its groups, layer by layer, and as one group after backward."""
    acpsgd = f"acpsgd:{rank}"
    return [f"torch-powersgd:{rank},2@1000mb", f"powersgd:{rank}", acpsgd, f"{acpsgd}@0mb", f"{acpsgd}@1"]


SETUPS = {
    "cupcake": [Setup(*model, where, _by_groups()) for where in (PCIE, SERVERS) for model in _CUPCAKE],
    "acpsgd": [Setup(model, batch, size, BOXES, _low_rank(rank)) for model, batch, size, rank in _ACPSGD],
    "adtopk": [Setup(*model, SINGLE, _SELECTIONS) for model in _ADTOPK],
    "gravac": [Setup(*model, MANY, [*_FACTORS, "multilevel"]) for model in _GRAVAC],
}
"""Models, batches, ranks and links are the published ones; GraVAC's and ADTopk's links, 10 Gbit/s, are assumed."""
