"""Controllers: algorithms that change the plan while training, by statistics of the gradients."""

from gradwire.controllers.accordion import Accordion
from gradwire.controllers.cat import CAT
from gradwire.controllers.controller import (
    MESSAGE_NUMBERS,
    Controller,
    Decision,
    GroupView,
    Observation,
    StepView,
    check_numbers,
)
from gradwire.controllers.gravac import GraVAC
from gradwire.controllers.lgreco import LGreCo
from gradwire.controllers.requests import NativeRequest, ProfileRequest
from gradwire.controllers.scadles import ScaDLES
from gradwire.controllers.warm_up import WarmUp

__all__ = [
    "CAT",
    "MESSAGE_NUMBERS",
    "Accordion",
    "Controller",
    "Decision",
    "GraVAC",
    "GroupView",
    "LGreCo",
    "NativeRequest",
    "Observation",
    "ProfileRequest",
    "ScaDLES",
    "StepView",
    "WarmUp",
    "check_numbers",
]
