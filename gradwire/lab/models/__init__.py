"""The models that the published systems were measured on, in their published sizes, and any other of transformers."""

from gradwire.lab.models.model_table import MODELS, Model
from gradwire.lab.models.size import Size

__all__ = ["MODELS", "Model", "Size"]
