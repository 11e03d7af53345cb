"""What a profile has of each parameter, and of each way to send."""

from dataclasses import dataclass
from math import inf, prod

from gradwire.plans import Group
from gradwire.schedule.costs import Affine, CostTable


def check_seconds(name: str, value: float) -> None:
    """Raises ValueError for what no clock shows."""
    if not 0 <= value < inf:
        raise ValueError(f"{name}={value} are no seconds; they are 0 or more, and finite")


def whole(name: str, value: float) -> int:
    """The value as a whole number. Raises ValueError for another one."""
    if value % 1:
        raise ValueError(f"{name}={value} is no whole number")
    return int(value)


@dataclass(frozen=True)
class SlotTime:
    """A parameter, and when its gradient is ready after backward began."""

    name: str
    shape: tuple[int, ...]
    ready_s: float
    """Seconds from the beginning of backward to the gradient."""
    pairs: bool = False
    """The last axis has real and imaginary parts."""
    cut: int = 0
    """As a `Slot` has it."""

    def __post_init__(self) -> None:
        if any(whole(f"shape of {self.name!r}", length) < 0 for length in self.shape):
            raise ValueError(f"the shape {self.shape} of {self.name!r} has a length below 0; profile a model")
        check_seconds(f"ready_s of {self.name!r}", self.ready_s)

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def dim(self) -> int:
        return len(self.shape) - self.pairs


@dataclass(frozen=True)
class Candidate:
    """A way to send a group, and its costs."""

    way: Group
    """Without slots."""
    encode: Affine | CostTable
    """Seconds against elements."""
    decode: Affine | CostTable
    efficiency: float
    """Progress of a step that sends everything so, in dense steps."""
    unasked: bool = False
    """Whether the user did not name it: it is there because small slots travel dense."""

    def __post_init__(self) -> None:
        # a share's rounding aside
        if not 0 <= self.efficiency < 1.01:
            raise ValueError(
                f"efficiency={self.efficiency} of {self.way.compressor} is no share of a dense one; it lies in [0, 1]"
            )
