"""Local steps as the first part of a configuration: `localsteps:30+topk:0.01`."""

from dataclasses import dataclass

from gradwire.frontends.local_steps.local_optimizer import DILOCO, Outer
from gradwire.frontends.local_steps.schedule import Schedule


@dataclass(frozen=True)
class LocalStepsSpec:
    """Before a compressor: `inner_steps` steps by each replica itself, then pseudo-gradients are averaged; `lr` and
    Nesterov `momentum` are the outer optimizer's. As it is, DiLoCo (Douillard et al., 2023,
    https://arxiv.org/abs/2311.08105).

    `fragments` of the model take turns; what travels is used `delay` inner steps later, when parameters become mix·own
    + (1 - mix)·shared, as in `gradwire.LocalSteps`."""

    inner_steps: int = 500
    """Steps of a round."""
    lr: float = DILOCO.lr
    momentum: float = DILOCO.momentum
    fragments: int = 1
    """Parts of the model that take turns."""
    delay: int = 0
    """Inner steps until a mean is used."""
    mix: float | None = None
    """The fraction of a replica's own parameters that is kept."""

    def __post_init__(self) -> None:
        # refuses numbers that do not fit together
        Schedule(self.inner_steps, self.fragments, self.delay, self.mix)
        Outer(self.lr, self.momentum)
