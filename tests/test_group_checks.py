"""Parts of a user's own that are not complete, or do not go together, are refused in one line that names them."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import gradwire as gw
from gradwire.plans import default_communicator, uniform
from gradwire.tuner.candidate_plans import ways_of
from tests.support.harness import slots_of
from tests.support.outside import Momentum, Truncated


class Bare(Truncated):
    pass


@dataclass(frozen=True)
class Listing(Truncated):
    """With an option that has no hash."""

    layers: list[str] = field(default_factory=list)


class Undecorated(gw.SimpleCodec):
    """All of `Truncated`, without being a dataclass."""

    payload_bytes, compress, decompress = Truncated.payload_bytes, Truncated.compress, Truncated.decompress


@dataclass
class Thawed(Undecorated):
    """Without frozen=True, and so without a hash."""


@dataclass(frozen=True)
class Keeping(Truncated):
    """A codec with state of its own."""

    flat_state: ClassVar[tuple[str, ...]] = ("velocity",)


@dataclass(frozen=True)
class KeepingResidual(Truncated):
    flat_state: ClassVar[tuple[str, ...]] = ("residual",)


@dataclass(frozen=True)
class WithQuantiles(gw.TopK):
    """Has a tensor of the name of OkTopk's."""

    def init_group(self) -> dict[str, Tensor]:
        return gw.OkTopk().init_group()


@dataclass(frozen=True)
class WithoutResidual(Momentum):
    flat_state: ClassVar[tuple[str, ...]] = ("velocity",)


GATHER, R = gw.AllGather(), gw.Residual()


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((Undecorated(), R, GATHER), r"Undecorated is no dataclass.*put @dataclass\(frozen=True\) above it"),
        ((Thawed(), R, GATHER), r"Thawed\(\) has no hash.*write @dataclass\(frozen=True\)"),
        ((Listing(), R, GATHER), r"Listing\(.*layers=\[\]\) has no hash.*tuples in place of lists"),
        ((Truncated(), WithoutResidual(), GATHER), r"write flat_state = \('residual', 'velocity'\)"),
        ((Keeping(), gw.DGCMemory(masking=False), GATHER), "Residual"),
        ((Keeping(), Momentum(), GATHER), "Keeping and Momentum would both keep 'velocity'"),
        ((KeepingResidual(), R, GATHER), "KeepingResidual and Residual would both keep 'residual'"),
        ((KeepingResidual(), gw.NoMemory(), GATHER), "would both keep 'residual'"),
        ((WithQuantiles(), R, gw.OkTopk()), "WithQuantiles and OkTopk would both keep"),
    ],
    ids=lambda value: "-".join(type(part).__name__ for part in value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_group_is_refused(parts: tuple, why: str):
    with pytest.raises(ValueError, match=why) as refusal:
        gw.Group(("w",), *parts)
    assert "\n" not in str(refusal.value)


def test_state_of_ones_own_beside_a_memory_is_taken():
    gw.Group(("w",), Keeping(), R, GATHER)
    gw.Group(("w",), Bare(), Momentum(), GATHER)


@dataclass(frozen=True)
class WithThreshold(gw.TopK):
    def init_group(self) -> dict[str, Tensor]:
        return {"threshold": torch.zeros((), device="cpu")}


@dataclass(frozen=True)
class InEights(Truncated):
    """Keeps state of matrices with a multiple of 8 rows alone."""

    def init_slot(self, rows: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"scales": torch.zeros(rows, columns).view(rows // 8, 8, columns)}


@pytest.mark.parametrize("codec", [Keeping(), WithThreshold(), InEights()], ids=str)
def test_a_codec_with_state_encodes_whole_groups_alone(codec: gw.Compressor):
    """ScatterReduce encodes parts of a group, and their sum again; the state is the whole group's."""
    slots = slots_of({"w": torch.empty(100, 100)})
    assert default_communicator(codec, slots, 1000) == GATHER
    assert {way.communicator for way in ways_of(codec, 8)} == {GATHER}
    for parts in [gw.ScatterReduce(), *([gw.Exclusive()] if isinstance(codec, gw.TopK) else [])]:
        with pytest.raises(ValueError, match=r"parts of (a group|them); pair it with"):
            gw.Group(("w",), codec, R, parts)
    assert default_communicator(Truncated(), slots, 1000) == gw.ScatterReduce()


@dataclass(frozen=True)
class OnlySparse(Momentum):
    def check(self, compressor: gw.Compressor) -> None:
        super().check(compressor)
        if not compressor.sparse:
            raise ValueError("pair it with TopK()")


class Averaging(OnlySparse):
    keeps_momentum = False


def test_a_memory_that_refuses_what_travels_dense_says_so():
    slots = slots_of({"w": torch.empty(13, 5), "b": torch.empty(5)})
    with pytest.raises(ValueError, match=r"OnlySparse keeps momentum.*pair it with TopK.*override its for_dense\(\)"):
        uniform(slots, gw.TopK(0.1), OnlySparse())
    # what is no momentum is kept for the rest alone, and searched
    assert uniform(slots, gw.TopK(0.1), Averaging()).groups[-1].memory == gw.NoMemory()
    gw.Auto([gw.Group((), gw.TopK(0.1), Averaging(), GATHER)])
