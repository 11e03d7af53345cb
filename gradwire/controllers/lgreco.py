"""L-GreCo: layer-wise compression, chosen by the bytes and errors of each layer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, ClassVar, Literal, TypeGuard

import numpy as np
import torch
from torch import Tensor

from gradwire.compressors import FP16, QSGD, Compressor, FixedSizeCompressor, GroupContext, Quantized, TernGrad
from gradwire.controllers.allocate import allocate
from gradwire.controllers.controller import MESSAGE_NUMBERS, Controller, Decision, Observation, StepView
from gradwire.controllers.errors import square_errors
from gradwire.controllers.recompress import Defaults, has, recompress, setting_of, with_options
from gradwire.memories import Memory
from gradwire.ops.lazy_sum import LazySum
from gradwire.options import check_type
from gradwire.plans import Group, Plan, sizes_follow_from_shapes
from gradwire.schedule.sent_bytes import wire_bytes
from gradwire.slots import Layout
from gradwire.split_groups import within_length
from gradwire.text_tensors import letters, text_of

SCALES = {
    "ratio": (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1, 3 / 2, 2, 4, 8),
    "rank": (1 / 4, 1 / 2, 3 / 4, 1, 5 / 4, 3 / 2, 2, 3, 4),
}
"""By default the choices of a layer: the given ratio or rank times these."""
MOST_GROUPS = 16
"""Above it, groups of the same compression are joined: each group costs a collective."""
Budget = Literal["error", "bytes", "seconds"]


@dataclass
class LGreCo(Controller):
    """Chooses a compressor for each layer, so that the sum of all errors stays that of the compressor given and the
    fewest bytes are sent (Alimohammadi et al., L-GreCo, MLSys 2024, https://arxiv.org/abs/2210.17357).

    An error is the norm of what a layer's gradient and residual lose, over all ranks. A few layers are measured per
    step, so that the message stays at 64 bytes; which ones follows from the number of steps that count. The first are
    measured after `interval` / 10 steps. After the last the plan follows, and `interval` steps later all are measured
    again.
    """

    budget: Budget = "error"
    """With "error" the fewest bytes are sent; with "bytes" or "seconds" the error is least for the bytes of `limit`."""
    limit: float | None = None
    """Payload bytes per rank and step of the layers that it chooses for, by default those of the compressor given, and
    not of others beside them; or seconds, for as many bytes as the link carries in them, as measured on the wire
    (Kimad, https://arxiv.org/abs/2312.08053)."""
    interval: int = 500
    """In steps."""
    choices: tuple[FixedSizeCompressor, ...] | None = field(default=None, metadata={"code": True})
    """Of each layer; by default the ratio times 1/8 to 8, or the rank times 1/4 to 4. In place of a compressor that has
    neither, be it a quantiser, `ChunkTopK` or your own, by default `Quantized` of 3 and 8 bits and `FP16`, or
    without a memory `TernGrad`, `QSGD` and `FP16`: 2, 8 and 16 bits."""
    numbers: ClassVar[int] = MESSAGE_NUMBERS
    looks: ClassVar[bool] = True
    times: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # the budget and its limit
        if self.budget == "seconds" and not self.limit:
            raise ValueError("a budget of seconds needs how many per step; use e.g. LGreCo('seconds', limit=0.05)")
        if self.limit is not None and (self.limit <= 0 or self.budget == "error"):
            raise ValueError(
                f"budget={self.budget!r}, limit={self.limit} is no budget; use LGreCo('error'), LGreCo('bytes', 4e6) "
                "or LGreCo('seconds', 0.05)"
            )
        check_type("choices", self.choices, (tuple, list), "(gw.TopK(0.01), gw.TopK(0.1))")
        self.choices = tuple(self.choices) if self.choices else None
        for choice in self.choices or ():
            check_type("choices", choice, (Compressor,), "(gw.TopK(0.01), gw.TopK(0.1))", optional=False)
            _check_choice(choice)
        if self.interval < 1:
            raise ValueError(f"interval={self.interval} counts steps; use 1 or more, e.g. interval=500")
        self._wire = [0.0, 0.0]
        self._reported = (0, 0.0)
        self._begin_layers(Plan(()))

    def check(self, plan: Plan) -> None:
        given = dict.fromkeys((way.compressor, way.memory) for way in plan.groups if _measured(way.compressor))
        if not given:
            raise ValueError(
                f"LGreCo measures what sparsifiers, quantisers and low rank lose, not {plan.groups[0].compressor}; "
                "use e.g. attach(ddp, PowerSGD(4), controller=LGreCo())"
            )
        for compressor, memory in given:
            _check_choice(compressor)
            choices = self._choices_for(compressor, memory)
            if len(choices) > MESSAGE_NUMBERS - 2:
                raise ValueError(f"{len(choices)} choices do not fit the message; use up to 14")
            # the group's memory takes every choice
            for choice in choices:
                _with_choice(plan, compressor, choice, self._defaults)

    def describe(self) -> str:
        # choices are code on the command line, but ranks compare them
        return super().describe().removesuffix(")") + f", choices={self.choices})"

    def begin(self, plan: Plan) -> Plan:
        self._begin_layers(plan)
        return plan

    def may_send(self) -> Iterable[Compressor]:
        return dict.fromkeys(choice for choices in self._choices.values() for choice in choices)

    def look(self, context: GroupContext, vector: LazySum, numbers: Tensor) -> None:
        # errors of all choices, for the layers of this step that are in this group
        here = {slot.name: index for index, slot in enumerate(context.layout.slots)}
        for at, name in self._looked_at(context.step):
            if name in here:
                part, slot = context.layout.parts(vector.total())[here[name]], context.layout.slots[here[name]]
                errors = square_errors(part, slot, self._choices[name])
                numbers[at : at + len(errors)] = numbers.new_tensor(errors)

    def observe(self, seen: StepView, numbers: Tensor) -> None:
        numbers[-2], numbers[-1] = seen.wire_bytes - self._reported[0], seen.wire_s - self._reported[1]
        self._reported = (seen.wire_bytes, seen.wire_s)
        # NaN where all ranks skip the step, whose layers are measured in the next one
        for view in seen.groups:
            numbers[-1:] += view.nonfinite

    def decide(self, seen: Observation) -> Plan | None:
        row, looked_at = seen.sums.double(), self._looked_at(seen.taken)
        if not row.isfinite().all():
            return None
        # bytes and seconds on the wire
        self._wire = [self._wire[0] + float(row[-2]), self._wire[1] + float(row[-1])]
        # errors by choice of the layers that were measured; those of before stay where a layer had no gradient
        for at, name in looked_at:
            errors = row[at : at + len(self._choices[name])].tolist()
            if any(errors) or name not in self._curves:
                self._curves[name] = errors
        # solve once all layers were measured
        last = bool(looked_at) and looked_at[-1][1] == self._names[-1]
        if not last or self._curves.keys() != set(self._names):
            return None
        plan = self._solve(seen)
        self._wire = [0.0, 0.0]
        return None if plan == seen.plan else plan

    def state_dict(self) -> dict[str, Tensor]:
        first = -1 if self._first is None else self._first
        curves = [number for name in self._names for number in self._curves.get(name, ())]
        known = [name in self._curves for name in self._names]
        numbers = torch.tensor([first, *self._wire, *known, *curves], dtype=torch.float64, device="cpu")
        return {"lgreco": numbers, "choices": letters(self._choices_text())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        saved, own = text_of(state["choices"]), self._choices_text()
        if saved != own:
            raise ValueError(f"it was saved with choices={saved}; these are {own}: pass the same choices")
        first, wire_bytes, wire_s, *rest = state["lgreco"].tolist()
        self._first, self._wire = None if first < 0 else int(first), [wire_bytes, wire_s]
        known, curves = rest[: len(self._names)], rest[len(self._names) :]
        for name in (name for name, there in zip(self._names, known, strict=True) if there):
            size = len(self._choices[name])
            self._curves[name], curves = curves[:size], curves[size:]

    def _choices_text(self) -> str:
        """The choices of each compressor given."""
        each = {str(self._given[name]): list(map(str, choices)) for name, choices in self._choices.items()}
        return str(self.choices or each)

    def _begin_layers(self, plan: Plan) -> None:
        # the layers that are measured, with the compressor given and their choices
        self._origin = plan
        ways = {name: (group.compressor, group.memory) for group in plan.groups for name in group.slots}
        self._given = {name: compressor for name, (compressor, _) in ways.items() if _measured(compressor)}
        self._names = list(self._given)
        self._choices = {name: self._choices_for(given, ways[name][1]) for name, given in self._given.items()}
        # squared errors by choice, of the layers measured so far
        self._curves: dict[str, list[float]] = {}
        self._looks = self._divided()
        self._first: int | None = None

    def _divided(self) -> list[list[tuple[int, str]]]:
        """The layers to measure in each step, as many as a message holds, with the place of their first number."""
        looks: list[list[tuple[int, str]]] = []
        at = MESSAGE_NUMBERS
        for name in self._names:
            # two numbers of a message are bytes and seconds on the wire
            if at + len(self._choices[name]) > MESSAGE_NUMBERS - 2:
                looks.append([])
                at = 0
            looks[-1].append((at, name))
            at += len(self._choices[name])
        return looks

    def _looked_at(self, taken: int) -> list[tuple[int, str]]:
        """The layers that are measured after so many steps that count, with the place of their first number."""
        # residuals fill for a while before the first look
        if self._first is None:
            self._first = taken + self.interval // 10
        if taken < self._first or not self._looks:
            return []
        at = (taken - self._first) % (len(self._looks) + self.interval)
        return self._looks[at] if at < len(self._looks) else []

    def _choices_for(self, given: FixedSizeCompressor, memory: Memory) -> Sequence[FixedSizeCompressor]:
        others = self.choices or _around(given, memory)
        return [*others, *([] if given in others else [given])]

    def _solve(self, seen: Observation) -> Plan:
        """The plan with the best choice for each layer, by the errors measured."""
        # errors and bytes of every choice (layers, choices)
        slots = {slot.name: slot for slot in seen.slots}
        most = max(map(len, self._choices.values()))
        errors, sizes = np.full((2, len(self._names), most), np.inf)
        for row, name in enumerate(self._names):
            count = len(self._choices[name])
            errors[row, :count] = [sqrt(error) for error in self._curves[name]]
            sizes[row, :count] = [choice.slot_bytes(slots[name]) for choice in self._choices[name]]
        # those of the compressors given are the budget
        given = [self._choices[name].index(self._given[name]) for name in self._names]
        rows = range(len(given))
        error, size = float(errors[rows, given].sum()), float(sizes[rows, given].sum())
        if self.budget == "error":
            chosen = allocate(sizes, errors, error)
        else:
            chosen = allocate(errors, sizes, self._byte_budget(size, seen))
        # regroup by choice
        picked = {name: self._choices[name][choice] for name, choice in zip(self._names, chosen, strict=True)}
        now = float(sizes[rows, chosen].sum()), float(errors[rows, chosen].sum())
        text = f"{now[0] / size:.3g} times the bytes at {now[1] / max(error, 1e-30):.3g} times the error"
        self.decisions.append(Decision(seen.next_step, text))
        plan = recompress(self._origin, lambda group, name: picked.get(name, group.compressor), self._defaults)
        return within_length(_joined(plan), seen.slots)

    def _byte_budget(self, uniform: float, seen: Observation) -> float:
        if self.budget == "bytes" or not self._wire[1]:
            return self.limit if self.limit and self.budget == "bytes" else uniform
        # payload bytes and bytes on the wire of a step by the plan given
        slots = {slot.name: slot for slot in seen.slots}
        sent = payload = 0
        for group in self._origin.groups:
            layout = Layout(tuple(slots[name] for name in group.slots))
            if _measured(group.compressor):
                sent += wire_bytes(group, layout, seen.replicas)
                payload += sum(group.compressor.slot_bytes(slot) for slot in layout.slots)
        # bytes per second of the wire, times the budget's seconds, times payload over wire bytes
        # (0 bytes for one host alone, which has no link between hosts)
        return (self.limit or 0.0) * self._wire[0] / self._wire[1] * payload / sent if sent else uniform


def _measured(compressor: Compressor) -> TypeGuard[FixedSizeCompressor]:
    """Whether the compressor has an error and can predict it."""
    return sizes_follow_from_shapes(compressor) and not compressor.is_cast


def _with_choice(plan: Plan, given: Compressor, choice: Compressor, defaults: Defaults) -> Plan:
    """A copy of the plan with `choice` in place of a compressor given. Raises ValueError where they do not fit."""
    return recompress(plan, lambda group, _: choice if group.compressor == given else group.compressor, defaults)


def _check_choice(compressor: Compressor) -> None:
    """Raises ValueError for a compressor whose error on a layer is not to be compared."""
    if not sizes_follow_from_shapes(compressor):
        raise ValueError(f"{compressor} cannot predict its error on a layer; use e.g. choices=(gw.TopK(0.01),)")
    if not compressor.decodes_means:
        raise ValueError(f"{compressor} makes no mean of gradients, which others are compared with; use PowerSGD(4)")
    # it sends what passes, whatever its ratio
    if has(compressor, "threshold"):
        raise ValueError(f"the error of {compressor} follows from its threshold; use e.g. TopK(0.01)")


def _around(given: FixedSizeCompressor, memory: Memory) -> list[FixedSizeCompressor]:
    """The default choices of a layer, given its compressor and memory."""
    setting = setting_of(given)
    # no setting that scales
    if setting not in SCALES:
        # TernGrad's error would build up in a memory, and Quantized's be lost without one
        return [Quantized(3), Quantized(8), FP16()] if memory.error_feedback else [TernGrad(), QSGD(), FP16()]
    value: Any = getattr(given, setting)
    if setting == "ratio":
        values = [min(1.0, value * scale) for scale in SCALES[setting]]
    elif value < 1:  # relative to a matrix's shorter side
        values = [value * scale for scale in SCALES[setting] if value * scale < 1]
    else:
        values = [max(1, round(value * scale)) for scale in SCALES[setting]]
    return [with_options(given, {setting: value}) for value in sorted(set(values))]


def _joined(plan: Plan) -> Plan:
    """The plan, or one with all layers of equal compression in a group where it has too many groups."""
    if len(plan.groups) <= MOST_GROUPS:
        return plan
    # the layers of each way to compress
    names: dict[Group, list[str]] = {}
    for group in plan.groups:
        names.setdefault(replace(group, slots=()), []).extend(group.slots)
    return Plan(tuple(replace(way, slots=tuple(own)) for way, own in names.items()))
