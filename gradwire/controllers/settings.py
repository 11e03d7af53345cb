"""The one number that says how much a compressor sends."""

from gradwire.compressors import Compressor
from gradwire.controllers.recompress import has

SETTINGS = ("ratio", "rank", "levels")


def setting_of(compressor: Compressor) -> str | None:
    """The name of that hyperparameter; None where there is none, as with casts."""
    return next((name for name in SETTINGS if has(compressor, name)), None)
