"""Controllers: what changes a plan while training, from what the training itself shows."""

from gradwire.controllers.accordion import Accordion
from gradwire.controllers.auto import Auto
from gradwire.controllers.base import MESSAGE_NUMBERS, Controller, Decision, Step
from gradwire.controllers.cat import CAT
from gradwire.controllers.gravac import GraVAC
from gradwire.controllers.lgreco import LGreCo
from gradwire.controllers.scadles import ScaDLES
from gradwire.controllers.warm_up import WarmUp

__all__ = [
    "CAT", "MESSAGE_NUMBERS", "Accordion", "Auto", "Controller", "Decision", "GraVAC", "LGreCo", "ScaDLES", "Step",
    "WarmUp",
]  # fmt: skip
