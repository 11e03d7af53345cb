"""Step times of configurations, summed up over alternating repeats."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

from gradwire.lab.jobs.bench_job import TimedSteps
from gradwire.lab.names import NOCOMM
from gradwire.lab.results import Spread, Totals


@dataclass(frozen=True)
class Timing:
    """One configuration: `step_ms` over the steps of all repeats; `totals` are of these `steps`."""

    configuration: str
    """As the command line has it."""
    step_ms: Spread
    """Of a step."""
    times_nocomm: float
    """The median over that of `nocomm`."""
    steps: int
    """Steps that were timed."""
    totals: Totals
    """Bytes and seconds of these steps, all together."""

    def to_json(self) -> dict[str, Any]:
        return {
            "configuration": self.configuration,
            "step_ms": asdict(self.step_ms),
            "times_nocomm": self.times_nocomm,
            "per_step": {name: value and value / self.steps for name, value in asdict(self.totals).items()},
            "steps": self.steps,
        }


def summarize(samples: Sequence[TimedSteps]) -> list[Timing]:
    """One `Timing` per configuration, in the order of the first repeat; `nocomm` must be among them."""
    # samples of each configuration, over all repeats
    of = {name: [s for s in samples if s.configuration == name] for name in _names(samples)}
    spreads = {name: Spread.of([ms for s in mine for ms in s.step_ms]) for name, mine in of.items()}
    # the step without communication is the unit
    alone = spreads[NOCOMM].median
    return [
        Timing(
            name,
            spread,
            spread.median / alone,
            sum(len(sample.step_ms) for sample in of[name]),
            reduce(add, [sample.totals for sample in of[name]]),
        )
        for name, spread in spreads.items()
    ]


def _names(samples: Sequence[TimedSteps]) -> list[str]:
    return list(dict.fromkeys(sample.configuration for sample in samples))
