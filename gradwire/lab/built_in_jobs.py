"""The jobs whose profiles come with Gradwire, and where each is from."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gradwire.lab.built_in_profiles import MODELS, profile
from gradwire.lab.h200_profile import bert_large
from gradwire.schedule.profile import Profile


class BuiltIn(NamedTuple):
    """A job that need not be profiled."""

    origin: str
    """The GPU, and whose figures."""
    profile: Callable[[], Profile]
    """Makes its profile."""


_V100 = "V100s in float32, by the figures of Wang et al. (MLSys 2023) and NVIDIA"
_H200 = "8 x 256 tokens a rank on H200s in bf16, by steps of GPT-2 medium, as large, measured on one"
BUILT_IN = {
    **{name: BuiltIn(_V100, partial(profile, name)) for name in MODELS},
    "bert-base": BuiltIn(f"1,024 tokens a rank on {_V100}", partial(profile, "bert-base")),
    "bert-large": BuiltIn(_H200, bert_large),
}
