"""Suites: the measurements of the four published systems, as tables of rows."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product

from gradwire.lab.experiments.bench_setup import Setup
from gradwire.lab.models import MODELS
from gradwire.unknown import unknown


@dataclass(frozen=True)
class SuiteRow:
    """One configuration in one set-up; `published` is the set-up before it was cut."""

    setup: Setup
    """The set-up as it is measured."""
    configuration: str
    published: Setup = field(compare=False)

    @property
    def note(self) -> str:
        parts = [f"{self.setup.layers} of {sum(MODELS[self.setup.model].stages)} layers"] if self.setup.layers else []
        for name in ("ranks", "batch", "size", "link"):
            now, then = getattr(self.setup, name), getattr(self.published, name)
            parts += [f"{name} {now} for {then}"] if now != then else []
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Replacements of a suite's own values, to fit a machine; `model` keeps the rows of one model."""

    model: str | None = None
    ranks: int | None = None
    link: str | None = None
    layers: int | None = None
    batch: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and self.layers < 1:
            raise ValueError(f"layers={self.layers} cannot be had: give 1 or more")

    def of(self, row: SuiteRow) -> SuiteRow:
        """The row, cut. A model without so few layers keeps as few as it can, one without so many all of them."""
        # the user's values in place of the suite's
        given = {name: getattr(self, name) for name in ("ranks", "link", "batch", "size")}
        values = {name: value for name, value in given.items() if value is not None}
        stages = MODELS[row.setup.model].stages
        if self.layers is not None and self.layers < sum(stages):
            values["layers"] = max(self.layers, len(stages))
        return replace(row, setup=replace(row.setup, **values))


def suite(name: str, cuts: Overrides) -> list[SuiteRow]:
    """The rows of a suite, cut, without duplicates.

    Raises ValueError for an unknown suite, and for a model that it does not have."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    rows = [row for row in SUITES[name] if cuts.model in (None, row.setup.model)]
    if not rows:
        raise unknown(
            f"model of {name} named", cuts.model or "", dict.fromkeys(row.setup.model for row in SUITES[name])
        )
    # rows that differ only in what the cuts took away are one row
    return list(dict.fromkeys(map(cuts.of, rows)))


def _rows(setups: Iterable[Setup], configurations: Iterable[str]) -> list[SuiteRow]:
    return [SuiteRow(setup, configuration, setup) for setup, configuration in product(setups, list(configurations))]


def _cupcake() -> list[SuiteRow]:
    """Ten compressors by their groups: layer by layer as in GRACE, 1, 2, 4 or 8 of as many tensors, 25 MB as DDP's, and
    by the search. 8 GPUs of one server, and 8 servers."""
    compressors = ["fp16", "qsgd", "terngrad", "efsignsgd", "onebit", "signsgd", "signum"]
    compressors += ["topk:0.01", "dgc:0.01", "randomk:0.01"]
    configurations = [
        f"{name}@{groups}" for name, groups in product(compressors, ("0mb", 1, 2, 4, 8, "25mb", "planned"))
    ]
    # its three models, with batch and size of inputs
    models = [("resnet50", 32, 224), ("resnet101", 32, 224), ("bert-base", 8, 128)]
    setups = [
        Setup(model=model, ranks=8, link=link, batch=batch, size=size)
        for link in ("loopback", "25gbit")
        for model, batch, size in models
    ]
    return _rows(setups, ["dense", *configurations])


_ACPSGD = {"resnet50": (64, 224, 4), "resnet152": (32, 224, 4), "bert-base": (32, 64, 32), "bert-large": (8, 64, 32)}
"""dnn: bs, senlen, rank."""


def _acpsgd() -> list[SuiteRow]:
    """Its settings on 32 GPUs and 10 Gbit/s; then one of them at a time: buffer, batch, rank, GPUs, link."""

    def setup(model: str, ranks: int = 32, link: str = "10gbit", batch: int | None = None) -> Setup:
        published_batch, size, _ = _ACPSGD[model]
        return Setup(model=model, ranks=ranks, link=link, batch=batch or published_batch, size=size)

    def methods(rank: int, buffer: str = "") -> list[str]:
        return [
            f"{method}{buffer}" for method in ("dense", f"torch-powersgd:{rank}", f"powersgd:{rank}", f"acpsgd:{rank}")
        ]

    # its four models; then buffers, batches, ranks of the factors, GPUs and links
    rows = [row for model, (_, _, rank) in _ACPSGD.items() for row in _rows([setup(model)], methods(rank))]
    for megabytes in (0, 25, 50, 100, 500, 1000, 1500):
        rows += _rows([setup("bert-large")], methods(32, f"@{megabytes}mb"))
    rows += _rows([setup("resnet152", batch=batch) for batch in (8, 16, 24, 32)], methods(4))
    for rank in (32, 64, 128, 256):
        rows += _rows([setup("bert-large")], methods(rank))
    for model, rank in (("resnet50", 4), ("bert-base", 32)):
        rows += _rows([setup(model, ranks=ranks) for ranks in (4, 8, 16, 32, 64)], methods(rank))
        rows += _rows([setup(model, link=link) for link in ("1gbit", "10gbit", "100gbit")], methods(rank))
    return rows


def _adtopk() -> list[SuiteRow]:
    """ADTopk-I (all-dimension and top-k in turn), ADTopk (and a reused threshold) and five others at 1 %, by
    all-gather, and with small matrices by all-reduce, and Ok-Topk, on 8 GPUs."""
    sizes = {"bert-large": (4, 384), "gpt2-large": (2, 1024), "vit-large": (8, 224), "resnet152": (32, 224)}
    setups = [
        Setup(model=model, ranks=8, link="10gbit", batch=batch, size=size) for model, (batch, size) in sizes.items()
    ]
    compressors = ["interleaved", "interleaved:second=reusedthreshold"]
    compressors += ["gaussiank:0.01", "sidco:0.01", "dgc:0.01", "redsync:0.01", "topk:0.01"]
    ways = ["+residual+allgather", "+residual+allgather@hybrid"]
    gathered = [f"{name}{way}" for name, way in product(compressors, ways)]
    return _rows(setups, ["dense", *gathered, "topk:0.01+residual+oktopk"])


def _gravac() -> list[SuiteRow]:
    """Four sparsifiers at 10, 100 and 1000 times fewer elements, layer by layer, on 32 GPUs."""
    sizes = {"resnet101": (32, 32), "vgg16": (32, 32), "lstm": (20, 35)}
    setups = [
        Setup(model=model, ranks=32, link="10gbit", batch=batch, size=size) for model, (batch, size) in sizes.items()
    ]
    sparsifiers, ratios = ("topk", "dgc", "redsync", "randomk"), (0.1, 0.01, 0.001)
    return _rows(setups, ["dense", *(f"{name}:{ratio}@0mb" for name, ratio in product(sparsifiers, ratios))])


SUITES = {"cupcake": _cupcake(), "acpsgd": _acpsgd(), "adtopk": _adtopk(), "gravac": _gravac()}
"""Ranks, batches and links are the published ones; GraVAC's and ADTopk's networks were not stated."""
