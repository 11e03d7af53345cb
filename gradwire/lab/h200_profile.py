"""The profile of BERT-large on an H200, from steps that were measured there (docs/benchmarks/gpu.md, 2afc047,
2026-11-28): autocast to bf16, AdamW, 8 samples of 256 tokens a rank, 8 ranks with a link of 25 Gbit/s each, played.

A step without communication is GPT-2 medium's, which has as many layers of the same width. What a group costs was
measured on one of 24.1 million elements, with the decoding of 8 payloads. Such steps are bound by launching: while the
worker launches, backward waits. That takes about a millisecond for each group, as steps with ACP-SGD show, whose wire
is hidden; DDP's buckets take 0.3, as its steps on a link of no cost show.
"""

from collections.abc import Iterator

from gradwire.communicators import Communicator, ScatterReduce
from gradwire.compressors import ACPSGD, BF16, FP32, Compressor, EFSignSGD, PowerSGD, Quantized, TopK
from gradwire.lab.built_in_profiles import MS, ParameterWork, bert, linear, norm, profile_on
from gradwire.memories import NoMemory, Residual
from gradwire.plans import Group, default_communicator
from gradwire.schedule.cluster import Cluster
from gradwire.schedule.costs import Affine
from gradwire.schedule.profile import Profile
from gradwire.schedule.profiled import Candidate
from gradwire.tuner.rehearsal import expected

STEP_S = 68.3 * MS
ELEMENTS = 24.1e6
"""Of the group that was measured."""
LAUNCH_MS, BUCKET_MS = 1.0, 0.3
"""To launch a group's kernels, and a bucket's of DDP."""
PLAYED = Cluster(8, 25e9 / 8)

COSTS: tuple[tuple[Compressor, Communicator | None, float, float, float], ...] = (
    (FP32(), None, BUCKET_MS, 0.155, 0.0),
    (BF16(), None, BUCKET_MS, 0.223, 0.0),
    (Quantized(4), ScatterReduce(), LAUNCH_MS, 0.260, 0.0),
    (EFSignSGD(), None, LAUNCH_MS, 0.126, 0.064),
    (EFSignSGD(), ScatterReduce(), LAUNCH_MS, 0.260, 0.0),
    (TopK(1 / 16, value_bits=4), None, LAUNCH_MS, 0.658, 0.260),
    (TopK(1 / 16, value_bits=4), ScatterReduce(), LAUNCH_MS, 1.144, 0.0),
    (TopK(0.01), None, LAUNCH_MS, 0.242, 0.112),
    (TopK(0.01), ScatterReduce(), LAUNCH_MS, 0.580, 0.0),
    (PowerSGD(rank=4), None, LAUNCH_MS, 0.338, 0.0),
    (ACPSGD(rank=4), None, LAUNCH_MS, 0.272, 0.0),
)
"""Compressors and communicators, and milliseconds: to launch a group, to encode and decode the one that was measured.
Decoding that does not grow with the ranks counts as encoding. By scatter-reduce two were not measured: EFSignSGD counts
like 4 bits, and TopK 1/16 like its all-gather and what 1 % takes longer by scatter-reduce."""


def bert_large() -> Profile:
    """BERT-large with the outputs of its pre-training, on 8 ranks."""
    # two threads that launch take turns
    return profile_on(PLAYED, tuple(_tensors()), STEP_S, tuple(_candidates()), contention=0.5)


def _candidates() -> Iterator[Candidate]:
    for compressor, communicator, launch_ms, encode_ms, decode_ms in COSTS:
        memory = NoMemory() if compressor.is_cast else Residual()
        way = Group((), compressor, memory, communicator or default_communicator(compressor))
        encode, decode = (
            Affine(MS * fixed, MS * each / ELEMENTS) for fixed, each in ((launch_ms, encode_ms), (0.0, decode_ms))
        )
        yield Candidate(way, encode, decode, expected(way))


def _tensors() -> Iterator[ParameterWork]:
    yield from bert(24, 1024)
    for name in ("pooler", "words again"):
        yield from linear(name, 1024, 1024)
    yield from norm("words again", 1024)
    yield ParameterWork("words again.offset", (30522,))
    yield from linear("next sentence", 2, 1024)
