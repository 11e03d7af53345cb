"""The native kernels against their definition: adding in, blocks, bits, and the library itself."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import gradwire as gw
from gradwire.ops import native, noise, reference
from gradwire.ops.backend import NATIVE, REFERENCE
from gradwire.ops.entries import Entries
from gradwire.ops.formats import Blocks, Code, nearest, one_bit, qsgd, shared_exponent, sign, ternary
from gradwire.ops.native import library
from gradwire.ops.noise import Noise, Seed
from gradwire.ops.reference.levels import BELOW_ONE, levels
from tests.support.harness import job, plan_of, slots_of
from tests.support.kernel_cases import (
    CODES,
    DTYPES,
    at_every_level,
    each_isa,
    garbage,
    needs_library,
    numbers,
    same_bits,
    shifted,
    strange,
    subnormals_as_zero,
    vectors,
    weighable,
)  # fmt: skip


@needs_library
@given(
    **vectors, dtype=st.sampled_from(DTYPES), decay=st.sampled_from([1.0, 0.9]),
    weight=st.sampled_from([1.0, 1 / 3, 0.0]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_add_in_is_the_references(n, seed, spread, zeros, by, dtype, decay, weight):
    old = shifted(numbers(n, seed, spread, zeros), by)
    gradient = shifted(weighable(n, seed + 1, weight).to(dtype), 3 - by)
    cuts = sorted({0, n // 3, n // 2, n})
    pieces: list[Tensor | int] = [gradient[a:b] for a, b in pairwise(cuts)]
    if pieces:
        pieces[len(pieces) // 2] = pieces[len(pieces) // 2].numel()  # pyright: ignore
    for _ in each_isa():
        for source in (gradient, None, pieces):
            for kept in (old, old.bfloat16(), None):
                check_add_in(kept, source, decay, weight, n)
        same = old.clone()
        assert NATIVE.add_in(same, same, gradient, decay, weight)
        assert torch.equal(same, expected_sum(old, gradient, decay, weight))


def check_add_in(old, gradient, decay, weight, n):
    ours, theirs = torch.full((n,), torch.nan), torch.full((n,), torch.nan)
    finite = NATIVE.add_in(ours, old, gradient, decay, weight)
    assert finite == REFERENCE.add_in(theirs, old, gradient, decay, weight)
    assert same_bits(ours, theirs)


def expected_sum(old: Tensor, gradient: Tensor, decay: float, weight: float) -> Tensor:
    return old * decay + (gradient.float() * weight if weight else 0)


@needs_library
@given(x=strange, dtype=st.sampled_from(DTYPES))
@example(x=[2.0**96], dtype=torch.float32)
@example(x=[7.922815e28, -7.922815e28], dtype=torch.float32)
@example(x=[float("nan")], dtype=torch.float16)
@example(x=[float("-inf")], dtype=torch.bfloat16)
@example(x=[1e-45, -1e-40, 6e-8], dtype=torch.float16)
@settings(max_examples=100, deadline=None)
def test_not_finite_is_noticed(x, dtype):
    gradient = torch.tensor(x).to(dtype)
    old = torch.zeros(len(x))
    for _ in each_isa():
        next = torch.empty(len(x))
        assert NATIVE.add_in(next, old, gradient, 1.0, 1.0) == bool((gradient.float().abs() < 2.0**96).all())
        assert same_bits(next, gradient.float())


@at_every_level
def test_subnormal_float16_stays_where_subnormals_count_as_zero():
    """They are normal numbers of float32."""
    gradient = torch.tensor([6e-8, -6e-5, 6.2e-5, 0.0, -0.0, 1.0, 65504.0, torch.inf] * 9).half()
    expected, found = gradient.float(), torch.empty(len(gradient))
    with subnormals_as_zero():
        NATIVE.add_in(found, None, gradient, 1.0, 1.0)
    assert same_bits(found, expected)


@at_every_level
def test_what_decays_ends_as_zero():
    """Not as a number below the least normal one, with which a CPU takes ten times as long, for good."""
    least = torch.finfo(torch.float32).tiny
    old = torch.tensor([1.0, -1.0, 1.05, -1.1, 1.2, 1e-7, 0.0, 1e30] * 9).mul_(least)
    for source in (None, torch.zeros(len(old)), torch.full((len(old),), -0.2 * least)):
        for kept in (old, old.bfloat16()):
            check_add_in(kept, source, 0.9, 1.0, len(old))
            found = torch.empty(len(old))
            NATIVE.add_in(found, kept, source, 0.9, 1.0)
            assert bool(((found == 0) | (found.abs() >= least)).all())
            check_add_in(kept, source, 1 - 1e-8, 1.0, len(old))  # which is 1 in float32: nothing decays
        # without a decay all is kept
        NATIVE.add_in(found, old, None, 1.0, 1.0)
        assert torch.equal(found, old)


@pytest.mark.parametrize("where", [0, 1, 15, 16, 4095, 4096, 9999])
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@at_every_level
def test_one_bad_element_anywhere(where: int, bad: float):
    x = torch.ones(10_000)
    x[where] = bad
    layouts = [Entries(10_000, 100), Entries(10_000, 100, 4), *(Blocks((10_000,), code) for code in CODES)]
    assert not NATIVE.add_in(torch.empty(10_000), None, x, 1.0, 1.0)
    for layout in layouts:
        add = NATIVE.add_quantise if isinstance(layout, Blocks) else NATIVE.add_select
        more = {"keep": True, "seeds": [Seed(0)]} if isinstance(layout, Blocks) else {}
        assert not add(torch.empty(10_000), None, x, 1.0, 1.0, [layout], garbage(layout.nbytes)[None], **more)


@at_every_level
def test_sums_beyond_the_largest_number_are_not_finite():
    x = torch.full((1000,), 3e38)
    layout = Blocks((1000,), sign())
    for ops in (NATIVE, REFERENCE):
        assert not ops.add_quantise(
            torch.empty(1000), None, x, 1.0, 1.0, [layout], garbage(layout.nbytes)[None], keep=True, seeds=[Seed(0)]
        )


@needs_library
@given(
    **vectors, code=st.sampled_from(CODES), cut=st.floats(0, 1), keep=st.booleans(), dtype=st.sampled_from(DTYPES),
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_blocks_are_the_references(n, seed, spread, zeros, by, code, cut, keep, dtype):
    first = int(cut * n)
    layout = Blocks((first, n - first), code)
    old, gradient = shifted(numbers(n, seed, spread, zeros), by), numbers(n, seed + 1).to(dtype)
    for _ in each_isa():
        for kept in (old, old.bfloat16()):
            check_blocks(kept, gradient, layout, keep=keep, seed=seed)


def check_blocks(old: Tensor | None, gradient: Tensor | None, layout: Blocks, *, keep: bool, seed: int) -> None:
    ours, theirs = torch.full((2, layout.numel), torch.nan)
    payload, expected = garbage(layout.nbytes), garbage(layout.nbytes)
    finite = NATIVE.add_quantise(ours, old, gradient, 0.9, 0.25, [layout], payload[None], keep=keep, seeds=[Seed(seed)])
    assert finite == REFERENCE.add_quantise(
        theirs, old, gradient, 0.9, 0.25, [layout], expected[None], keep=keep, seeds=[Seed(seed)]
    )
    if not finite:
        return
    if layout.code.bits > 1:
        assert torch.equal(payload, expected)
        assert same_bits(ours, theirs)
        return
    at, n = layout.codes_at, layout.count * layout.code.scale_bytes
    assert torch.equal(payload[at:], expected[at:])
    mine, his = payload[:n].view(torch.float32), expected[:n].view(torch.float32)
    torch.testing.assert_close(mine, his, rtol=2e-6, atol=1e-38)
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6 * float(mine.abs().max()) if n else 0)


@needs_library
@given(x=strange, code=st.sampled_from(CODES), keep=st.booleans())
@example(x=[1e-45, -1e-39], code=nearest(4), keep=True)
@example(x=[1e-45, -1e-39], code=qsgd(), keep=True)
@example(x=[1e-45, -1e-39], code=shared_exponent(), keep=True)
@example(x=[127 / 4, -127.001 / 4], code=shared_exponent(8), keep=True)  # the largest code, and one beyond it
@example(x=[3.4e38, 1.0], code=nearest(2, 8), keep=True)
@example(x=[0.0, -0.0], code=one_bit(8), keep=True)
@example(x=[(1 + 2**-8) / 4], code=nearest(2, 8), keep=True)  # a scale half-way between two bfloat16
@example(x=[33.49 * 2**-133 * 127], code=nearest(8, 128), keep=True)  # a subnormal scale: 129 of 127
@settings(max_examples=150, deadline=None)
def test_blocks_of_strange_numbers(x, code, keep):
    gradient = 4 * torch.tensor(x)
    for _ in each_isa():
        check_blocks(None, gradient, Blocks((len(x),), code), keep=keep, seed=1)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("blocks", [1, 2, 3])
@at_every_level
def test_whole_blocks_and_their_neighbours(code: Code, blocks: int):
    for n in (blocks * code.block - 1, blocks * code.block, blocks * code.block + 1):
        check_blocks(numbers(n, n), numbers(n, 7), Blocks((n,), code), keep=True, seed=n)


@pytest.mark.parametrize("code", [sign(1 << 22), one_bit(1 << 22)], ids=["sign", "one bit"])
@at_every_level
def test_means_of_large_blocks(code: Code):
    """Not summed in float32 from end to end, which leaves out what the last elements add."""
    n = code.block
    layout = Blocks((n,), code)
    for x in (torch.full((n,), 0.1), numbers(n, 1, 0.0)):
        payload = garbage(layout.nbytes)
        assert NATIVE.add_quantise(
            torch.empty(n), None, x, 1.0, 1.0, [layout], payload[None], keep=True, seeds=[Seed(0)]
        )
        exact, plus = x.double(), x >= 0
        groups = [exact.abs()] if code.kind == "sign" else [exact[~plus], exact[plus]]
        expected = torch.stack([each.sum() / max(len(each), 1) for each in groups]).float()
        found = payload[: layout.code.scale_bytes].view(torch.float32)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("code", CODES)
@at_every_level
def test_what_is_sent_and_what_is_kept_add_up(code: Code):
    """The law of error feedback, and that slots share no scale."""
    lengths = (1000, 1, 64, 4100)
    layout = Blocks(lengths, code)
    x = numbers(sum(lengths), 0, 1.0)
    x[1000] = 1e28
    payload, kept, sent = garbage(layout.nbytes), torch.empty(len(x)), torch.empty(len(x))
    assert NATIVE.add_quantise(kept, x, None, 1.0, 0.0, [layout], payload[None], keep=True, seeds=[Seed(0)])
    NATIVE.sum_blocks(payload[None, None], sent, [layout])
    assert torch.equal(x - sent, kept)
    peak = x[:1000].abs().max()
    assert sent[:1000].abs().max() <= 1.01 * peak
    if code.kind == "nearest":
        assert (x - sent)[:1000].abs().max() <= 0.51 * peak / code.top * 1.01


@needs_library
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_decoding_blocks_is_the_references(code: Code, ranks: int):
    layout = Blocks((5000, 0, 77, 1024), code)
    rows = torch.zeros(ranks, layout.nbytes + 4, dtype=torch.uint8)
    for rank, row in enumerate(rows):
        x = numbers(layout.numel, rank)
        assert REFERENCE.add_quantise(
            x, x, None, 1.0, 0.0, [layout], row[: layout.nbytes][None], keep=False, seeds=[Seed(rank)]
        )
    check_sums(rows, layout)
    if code.kind in ("sign", "one bit"):  # scales that no rank sends
        rows[0, :8].view(torch.float32)[:] = torch.tensor([torch.inf, torch.nan])
        check_sums(rows, layout)


def check_sums(rows: Tensor, layout: Blocks) -> None:
    expected = torch.empty(layout.numel)
    REFERENCE.sum_blocks(rows[None], expected, [layout])
    for _ in each_isa():
        out = torch.full((layout.numel,), torch.nan)
        NATIVE.sum_blocks(rows[None], out, [layout])
        assert same_bits(out, expected)
        for lengths in (layout.lengths, (0, 1, 4094, 0, 2, 2003, 1)):  # parts end where segments do, or anywhere
            parts = [torch.full((length,), torch.nan) for length in lengths]
            for ops in (NATIVE, REFERENCE):
                ops.sum_blocks(rows[None], parts, [layout])
                assert same_bits(torch.cat(parts), expected)


def rounded_with_all_noises(value: float, code: Code, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The levels of an element of a block whose largest is 1, with each of a CPU's noises once."""
    drawn = torch.cat([torch.arange(-(1 << 15), 1 << 15), torch.zeros(1)]).short()
    monkeypatch.setattr(Noise, "sixteen_bits", lambda _noise, x: drawn.view_as(x))
    part = torch.full((1, len(drawn)), value)
    part[0, -1] = 1.0
    return levels(part, torch.empty(1, 1), code, Noise(Seed(0), part.device))[0, :-1]


@pytest.mark.parametrize("code", [qsgd(), ternary()], ids=["qsgd", "ternary"])
def test_rounding_at_random_leans_neither_up_nor_down(code: Code, monkeypatch: pytest.MonkeyPatch):
    for value in (0.3, 0.7777, 1.0):
        up, down = (rounded_with_all_noises(each, code, monkeypatch).double().mean() for each in (value, -value))
        assert up == -down
        assert up.item() == pytest.approx(value * code.top * BELOW_ONE, abs=2.0**-16)
        assert rounded_with_all_noises(value, code, monkeypatch).max() <= code.top
    assert not rounded_with_all_noises(0.0, code, monkeypatch).any()


def test_a_gpus_noise_is_below_zero_as_often_as_above(monkeypatch: pytest.MonkeyPatch):
    drawn = torch.randint(-(1 << 31), 1 << 31, (1000,), generator=torch.Generator().manual_seed(0)).int()

    def added(hashes: Tensor) -> Tensor:
        monkeypatch.setattr(noise, "on_host", lambda _device: False)
        monkeypatch.setattr(noise, "hashed", lambda *_: hashes.clone())
        x = torch.zeros(len(hashes))
        Noise(Seed(0), x.device).add_to(x)
        return x

    assert torch.equal(added(drawn), -added(~drawn))
    assert added(drawn).abs().max() <= 0.5


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 63, 64, 1000, 4097])
def test_codes_survive_packing(bits: int, n: int):
    top = 2 ** (bits - 1)
    x = torch.from_numpy(np.random.default_rng(n).integers(-top, top, n).astype(np.int8))
    size = -(-n * bits // 8)
    expected, back = garbage(size), torch.empty(n, dtype=torch.int8)
    reference.bits.pack_codes(x, expected, bits)
    reference.bits.unpack_codes(expected, back, bits)
    assert torch.equal(back, x)


@needs_library
@pytest.mark.parametrize("n", [0, 1, 3, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("zero_is_plus", [True, False])
def test_signs_survive_packing(n: int, zero_is_plus: bool):
    x = numbers(n, n, zeros=0.3)
    x[n // 2 : n // 2 + 1] = torch.nan
    expected, signs = garbage(-(-n // 8)), torch.empty(n)
    REFERENCE.pack_signs(x, expected, zero_is_plus)
    for _ in each_isa():
        codes, back = garbage(-(-n // 8)), torch.empty(n)
        NATIVE.pack_signs(x, codes, zero_is_plus)
        assert torch.equal(codes, expected)
        native.bits.unpack_signs(codes, back)
        reference.bits.unpack_signs(codes, signs)
        assert torch.equal(back, signs)


@needs_library
def test_what_cannot_be_read_is_refused_in_one_line():
    x = torch.zeros(8)
    with pytest.raises(ValueError, match="kernels take float32, bfloat16 or float16, dense"):
        NATIVE.add_in(x, None, torch.zeros(8, dtype=torch.float64), 1.0, 1.0)
    with pytest.raises(ValueError, match="kernels take float32, bfloat16 or float16, dense"):
        NATIVE.add_in(x, None, torch.zeros(16)[::2], 1.0, 1.0)
    with pytest.raises(ValueError, match="the gradient has 7 elements, the vector 8"):
        NATIVE.add_in(x, None, [torch.zeros(3), 4], 1.0, 1.0)
    with pytest.raises(ValueError, match=r"rows is \(1, 3\) .* the native kernels take \(ranks, at least 12\)"):
        NATIVE.sum_entries((torch.zeros(1, 3, dtype=torch.uint8))[None], x, [Entries(8, 1)])
    with pytest.raises(ValueError, match="the output has 7 elements"):
        NATIVE.sum_entries((torch.zeros(1, 64, dtype=torch.uint8))[None], torch.zeros(7), [Entries(8, 1)])


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object], None]]:
    """Sets GRADWIRE_KERNELS, as if it had been set from the beginning."""

    def choose(value: object) -> None:
        monkeypatch.setenv("GRADWIRE_KERNELS", str(value))
        library._find.cache_clear()

    yield choose
    monkeypatch.undo()
    library._find.cache_clear()


def test_a_checkout_that_was_not_built_is_named(kernels, monkeypatch):
    kernels("")
    monkeypatch.setattr(library, "_installed", list)
    assert "where none was built: make .venv/.dev does, with a C++ compiler" in native.reason()
    assert str(Path(__file__).parents[2]) in native.reason()


def test_the_reason_is_given_in_words(tmp_path, kernels):
    kernels("reference")
    assert (native.available(), native.reason()) == (False, "GRADWIRE_KERNELS=reference")
    kernels("fastest")
    with pytest.raises(ValueError, match="GRADWIRE_KERNELS=fastest is no file; set it to reference"):
        native.available()
    broken = tmp_path / "libgradwire.so"
    broken.write_text("no library")
    kernels(broken)
    with pytest.raises(ValueError, match=f"GRADWIRE_KERNELS={broken}: the library does not load: "):
        native.available()


@needs_library
def test_a_library_beside_the_script_is_found(tmp_path, kernels, monkeypatch):
    """Not looked for where the system has its libraries."""
    (tmp_path / "mine.so").write_bytes(Path(library.library()._name).read_bytes())
    monkeypatch.chdir(tmp_path)
    kernels("./mine.so")
    assert native.available()


def test_kernels_that_are_no_library_are_refused_when_ranks_meet(tmp_path, kernels):
    slots = slots_of({"w": torch.empty(4, 4)})
    plan = plan_of(slots, gw.TopK(0.5), gw.Residual(), gw.AllGather())
    (tmp_path / "broken.so").write_text("no library")
    for name in ("broken.so", "absent.so"):
        kernels(tmp_path / name)
        with pytest.raises(ValueError, match=r"GRADWIRE_KERNELS=.*set it to reference"), job(plan, slots, 2):
            pass
