"""Controllers: what changes a plan while training, from what the training itself shows."""

from gradwire.controllers.base import MESSAGE_NUMBERS, Controller, Decision, Step
from gradwire.controllers.gravac import GraVAC

__all__ = ["MESSAGE_NUMBERS", "Controller", "Decision", "GraVAC", "Step"]
