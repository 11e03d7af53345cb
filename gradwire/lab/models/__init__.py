"""The models that the published systems were measured on, in their published sizes."""

from gradwire.lab.models.published import MODELS, Model

__all__ = ["MODELS", "Model"]
