"""Whole steps of a model, in rounds that alternate, at the links that are played for it.

As many trainings as fit stay on the card together, "no communication" always among them, which is timed before every
few of the others: `of none` is the median over the rounds of a step's time over that one's, and `host of none` the same
of the training thread's time. Slow steps, which the wire bounds, stray less and have two rounds.
"""

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from math import ceil
from statistics import median
from typing import Any

from benchmarks.gpu.configurations import CONFIGURATIONS, PEERS
from benchmarks.gpu.device import Device
from benchmarks.gpu.models import Model, model_of
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.trainings import ALONE, Times, Training, all_recorded
from gradwire.schedule.cluster import Cluster
from gradwire.wire import ETHERNET

ROUNDS, ROUND_S = 15, 0.1
"""At most, as many as there is time for; and seconds of a configuration in each."""
BETWEEN = 3
"""Trainings that are timed behind one of no communication."""
SLOW, SLOW_ROUNDS = 2.5, 2
"""A step that takes this many times as long as without communication is slow; and the rounds of slow ones."""
COMPUTED = ["TopK 1 %", "ACP-SGD r4", "PowerSGD 1/6 in 4 bits"]
"""Those that are measured without recordings as well."""
LARGE = "100mb"
NONE, *OTHER_PEERS = PEERS


@dataclass(frozen=True)
class Way:
    """A way to reduce gradients, as tables show it."""

    what: str
    text: str = ""
    """As the command line writes it; where it is left out, `what` is a name of `configurations`."""
    records: bool = True
    where: str = ""
    """Which of several models of a section, where it has some."""

    def __str__(self) -> str:
        return f"{self.what}{self.where}"


def run(rows: Rows, device: Device) -> None:
    """The sections `bert`, `resnet`, `gpt2` and `bert512`."""
    first, *others = map(Way, CONFIGURATIONS)
    ways = [first, Way("torch PowerSGD r4"), *others]
    ways += [Way(name) for name in OTHER_PEERS if name != "torch PowerSGD r4"]
    if rows.section == "bert":
        ways += [Way(f"{name}, computed", CONFIGURATIONS[name], records=False) for name in COMPUTED]
        ways += [Way(f"{name}, 100 MB a group", f"{CONFIGURATIONS[name]}@{LARGE}") for name in COMPUTED[:2]]
    measure(rows, device, model_of(rows.section), ways)


def measure(rows: Rows, device: Device, model: Model, ways: Sequence[Way], cluster: Cluster = ALONE) -> None:
    """Adds a row for each way and link between the cluster's hosts."""
    ways = ways[:: len(ways) // 2] if device.tiny else ways
    waiting, together = iter(rows.each(ways, needs_s=4)), max(1, int(model.at_once * device.capacity / 80e9) - 1)
    parts = ceil(len(ways) / together)
    while first := next(waiting, None):
        with ExitStack() as stack:
            none = Way(NONE, where=first.where)
            # as many as there is time to make
            chunk = chain([none, first], islice(waiting, together - 1))
            trainings = dict(_begun(rows, device, model, chunk, cluster, stack))
            # garbage collection skips the objects of all these trainings: a job has those of one
            gc.collect()
            gc.freeze()
            # an equal share of the time that is left, in which the links take turns
            until_s, parts = rows.left_s * (1 - 1 / max(1, parts)), parts - 1
            if none in trainings:
                # what crashes from here on is not begun anew
                for way in trainings:
                    rows.add("begun", what=str(way))
                with rows.attempt(f"rounds of {first} and others", most_s=max(60.0, rows.left_s)):
                    _rounds(rows, model, trainings, 0.0 if device.tiny else ROUND_S, until_s)
            trainings.clear()
        gc.unfreeze()
        device.free()


def _begun(
    rows: Rows, device: Device, model: Model, ways: Iterable[Way], cluster: Cluster, stack: ExitStack
) -> Iterator[tuple[Way, Training]]:
    """Those trainings that can be made, warm."""
    for way in ways:
        with rows.attempt(way):
            training = Training(device, model, way.text or way.what, records=way.records, cluster=cluster)
            stack.callback(training.close)
            training.warm_up()
            rows.put_off(way)
            yield way, training


def _rounds(rows: Rows, model: Model, trainings: dict[Way, Training], seconds: float, until_s: float) -> None:
    """Adds a row for each of the trainings and links. Its rounds end where about `until_s` seconds are left."""
    found: dict[float, dict[Way, list[tuple[Times, Times]]]] = {gbit: defaultdict(list) for gbit in model.link_gbit}
    longest_s = 0.0
    for _ in range(ROUNDS if seconds else 1):
        began_s = rows.left_s
        if longest_s and began_s < until_s + longest_s:
            break
        for gbit, pairs in found.items():
            _round(trainings, gbit, seconds, pairs)
        longest_s = max(longest_s, began_s - rows.left_s)
    for gbit, pairs in found.items():
        for way, training in trainings.items():
            rows.add("steps", model=model.name, gbit=gbit, what=way.what, **cells(pairs[way]), **beside(training))


def _round(
    trainings: dict[Way, Training], gbit: float, seconds: float, pairs: dict[Way, list[tuple[Times, Times]]]
) -> None:  # fmt: skip
    """Times each of the trainings once, beside no communication."""
    none, *others = trainings
    for training in trainings.values():
        training.card.bytes_per_s = ETHERNET * 1e9 * gbit / 8
    wanted = [way for way in others if len(pairs[way]) < SLOW_ROUNDS or _of_none(pairs[way]) < SLOW]
    for first in range(0, len(wanted), BETWEEN):
        alone = trainings[none].timed(seconds)
        pairs[none].append((alone, alone))
        for way in wanted[first : first + BETWEEN]:
            pairs[way].append((alone, trainings[way].timed(seconds)))


def _of_none(pairs: list[tuple[Times, Times]]) -> float:
    return median(each.ms / alone.ms for alone, each in pairs)


def cells(pairs: list[tuple[Times, Times]]) -> dict[str, Any]:
    """Medians of the second ones, and ratios of the second to the first with their quartiles."""
    own = [each for _, each in pairs]
    ratios = sorted(each.ms / alone.ms for alone, each in pairs)
    hosts = [each.host_ms / alone.host_ms for alone, each in pairs]
    return {
        "ms": median(each.ms for each in own), "of none": median(ratios),
        "lower": ratios[len(ratios) // 4], "upper": ratios[-1 - len(ratios) // 4],
        "host ms": median(each.host_ms for each in own), "host of none": median(hosts),
        "wire ms": median(each.wire_ms for each in own), "rounds": len(own),
    }  # fmt: skip


def beside(training: Training) -> dict[str, Any]:
    status = training.recorded
    return {"loss": float(training.loss), "recorded": status.split(";")[0] if all_recorded(status) else status}
