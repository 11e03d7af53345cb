"""One group at work: gradients in, the mean out."""

from dataclasses import dataclass
from math import isfinite
from zlib import crc32

import torch
from torch import Tensor

from gradwire.collective import Broadcast, Idle, Local, Sum
from gradwire.compressors import Cast, Reduction, State, Workspace
from gradwire.layout import Layout, Slot
from gradwire.plan import Group
from gradwire.transports import Transport


@dataclass(frozen=True)
class Site:
    """What the groups of one engine share; `remembers` says that some of them keep state from step to step."""

    transport: Transport
    device: torch.device
    seed: int
    scratch: Workspace
    remembers: bool = False

    @property
    def share(self) -> float:
        """What one rank's gradient, or one host's, counts in the mean."""
        return 1 / self.transport.world

    @property
    def local_share(self) -> float:
        """What one rank's gradient counts in its host's."""
        return 1 / self.transport.local.world if self.transport.local else 1.0


class Reducer:
    """Collects the gradients of one group's slots and reduces them with the group's compressor.

    A gradient that is not finite is kept out of the memory; all ranks then see a mean of NaN, as they would
    without compression, and memories are what they were before the step. A slot that got no gradient sends
    nothing, and keeps what its memory holds.

    A `raw` group is only cast: it keeps nothing, and where its gradients lie one after another already, as in a
    bucket of DDP's, their mean takes their place. Other means may be written straight to where they are wanted.
    """

    def __init__(self, group: Group, slots: list[Slot], site: Site, index: int) -> None:
        self.group, self.site, self.index = group, site, index
        self.layout = Layout(tuple(slots))
        compressor, memory = group.compressor, group.memory
        self.raw = isinstance(compressor, Cast) and not memory.remembers
        self._leader = index % site.transport.local.world if site.transport.local else 0
        self.state = State(
            self.layout, site.transport.rank, site.transport.world, Workspace(site.device), site.scratch,
            remember=memory.remembers, seed=site.seed * 65_537 + index,
        )  # fmt: skip
        dtype = compressor.wire_dtype if isinstance(compressor, Cast) and self.raw else torch.float32
        for name in memory.flat_state:
            self.state.flat[name] = torch.zeros(self.layout.numel, dtype=dtype, device=site.device)
        for name in compressor.flat_state:
            self.state.flat[name] = torch.zeros(self.layout.numel, device=site.device)
        self.state.slots = [
            {
                name: tensor.to(site.device)
                for name, tensor in compressor.init_slot(*slot.matrix, _generator_of(slot)).items()
            }
            | group.communicator.init_slot()
            for slot in slots
        ]
        self._views = {name: self.layout.views(flat) for name, flat in self.state.flat.items()}
        self._tensors = [{name: views[i] for name, views in self._views.items()} for i in range(len(slots))]
        self._grads: dict[int, Tensor] = {}
        self._sinks: dict[int, Tensor] = {}
        self._held: dict[int, dict[str, Tensor]] = {}
        self._owed: dict[int, Tensor] = {}
        self.mean: list[Tensor] = []

    @property
    def compresses(self) -> bool:
        """Whether this rank's memory is in use: with hierarchical transports, one rank of each host."""
        local = self.site.transport.local
        return local is None or local.rank == self._leader

    def _kept(self, name: str) -> bool:
        """Whether a flat tensor outlives the step; without memory x does not, and may be the mean."""
        return name != "x" or self.group.memory.remembers

    def give(self, index: int, grad: Tensor | None, sink: Tensor | None = None) -> None:
        """Hands over the gradient of slot `index`; None where the parameter took no part in the step. `sink` is where
        its mean is wanted."""
        if grad is None:
            kept = {name: views[index] for name, views in self._views.items() if self._kept(name)}
            self._held[index] = {name: view.clone() for name, view in kept.items()}
            for views in self._views.values():
                views[index].zero_()
        else:
            self._grads[index] = grad
            if self.site.transport.local:
                torch.mul(grad, self.site.local_share, out=self._staged()[1][index])
                if index in self._owed:
                    self._staged()[1][index].add_(self._owed[index], alpha=1 / self.site.share)
                return
            if sink is not None:
                self._sinks[index] = sink
            if not self.raw:
                self._take(index, grad)

    def reduce(self) -> Reduction:
        """The collectives of this step; afterwards `mean` holds the parameter-shaped results."""
        if self.site.transport.local:
            return self._inside()
        return self._dense() if self.raw else self._between(self.state.flat["x"])

    def _dense(self) -> Reduction:
        x = self._lined_up()
        if x is None:
            x = self.state.flat["x"]
            for index, grad in self._grads.items():
                self._take(index, grad)
        else:
            x.mul_(self.site.share)
        return (yield from self._between(x))

    def _lined_up(self) -> Tensor | None:
        """The gradients as one vector (n,), where they lie one after another in memory, in the type that is sent."""
        first = self._grads.get(0)
        if first is None or first.dtype != self.state.flat["x"].dtype or self._held or self._owed:
            return None
        memory, start = first.untyped_storage().data_ptr(), first.storage_offset()
        for index, (slot, offset) in enumerate(zip(self.layout.slots, self.layout.offsets, strict=False)):
            grad = self._grads[index]
            if grad.untyped_storage().data_ptr() != memory or grad.storage_offset() != start + offset:
                return None
            if grad.stride() != slot.strides:
                return None
        return first.as_strided((self.layout.numel,), (1,))

    def _between(self, x: Tensor) -> Reduction:
        self.state.sinks = self._flat_sinks()
        mean = yield from self.group.communicator.reduce(self.group.compressor, x, self.state)
        parts = self.layout.parts(mean) if isinstance(mean, Tensor) else mean
        if self.raw and self.site.remembers:
            self.state.settle(torch.stack([part.sum(dtype=torch.float32) for part in parts]).sum().mul_(0))
        elif not self.raw and (self.site.device.type != "cpu" or self.state.skipped):
            for part in parts:
                part.add_(self.state.verdict)
        self.mean = [slot.view(part) for slot, part in zip(self.layout.slots, parts, strict=True)]
        return mean

    def _flat_sinks(self) -> list[Tensor]:
        """Where the slots' means are wanted, (numel,) each, if all of them may be written there as they are."""
        slots = self.layout.slots
        fit = len(self._sinks) == len(slots) and not self._owed
        if not fit or any(self._sinks[i].stride() != slot.strides for i, slot in enumerate(slots)):
            return []
        if any(sink.dtype != torch.float32 for sink in self._sinks.values()):
            return []
        return [self._sinks[i].as_strided((slot.numel,), (1,)) for i, slot in enumerate(slots)]

    def _inside(self) -> Reduction:
        """Dense inside the host, compressed by this group's leader, handed to all with the verdict behind it."""
        flat, staged = self._staged()
        for index in self._held:
            staged[index].zero_()
        yield Local(Sum(flat))
        handed = self.state.kept.tensor("handed", (self.layout.numel + 1,))
        if self.compresses:
            for index, grad in enumerate(staged):
                self._add(index, grad, self.site.share)
            mean = yield from self._between(self.state.flat["x"])
            assert isinstance(mean, Tensor)
            handed[:-1].copy_(mean)
            handed[-1:].copy_(self.state.verdict)
        else:
            for _ in range(self.group.communicator.rounds(self.group.compressor, self.site.transport.world)):
                yield Idle()
        yield Local(Broadcast(handed, self._leader))
        self.state.settle(handed[-1:])
        self.mean = self.layout.views(handed[:-1])
        return handed

    @property
    def verdict(self) -> Tensor:
        """NaN (1,) where this group's gradients were not finite on some rank, else 0."""
        return self.state.verdict

    @property
    def owes(self) -> bool:
        """Whether something of another plan's memory is still to be sent."""
        return bool(self._owed)

    def _take(self, index: int, grad: Tensor) -> None:
        self._add(index, grad, self.site.share)
        if index in self._owed:
            self._views["x"][index].add_(self._owed[index])

    def _add(self, index: int, grad: Tensor, share: float) -> None:
        if not self.raw:
            total = grad.sum(dtype=torch.float32)
            if self.site.device.type == "cpu":
                if not isfinite(total.item()):
                    self.state.flag.fill_(torch.nan)
                    return
            else:
                self.state.flag.add_(total * 0)
                grad = grad.nan_to_num(0, 0, 0)
        self.group.memory.add(self._tensors[index], grad, share)

    def undo(self, verdict: Tensor) -> None:
        """Takes the whole job's verdict (1,) on the step; where it is NaN, all memories become what they were."""
        self.state.settle(verdict)
        if self.raw or (self.site.device.type == "cpu" and not self.state.skipped):
            return
        skip = verdict.isnan().float()[0]
        self.group.compressor.undo(self.state.flat["x"], self.state, skip)
        added = dict(enumerate(self._staged()[1])) if self.site.transport.local else self._grads
        for index, grad in added.items() if self.compresses else ():
            if self.site.device.type != "cpu":
                grad = grad.nan_to_num(0, 0, 0)
            elif not isfinite(grad.sum(dtype=torch.float32).item()):
                continue
            self.group.memory.undo(self._tensors[index], grad, self.site.share, skip)

    def settle_debts(self) -> None:
        """What was owed to slots that had a gradient has gone with it."""
        for index in self._owed.keys() & self._grads.keys():
            del self._owed[index]

    def close(self, used: list[bool]) -> None:
        """Ends the step: what was sent leaves the memory. `used` says of each slot whether any rank had a
        gradient for it; where none had, DDP and optimizers ignore the mean, so the memory becomes again what it
        was."""
        if self.compresses and not self.state.skipped:
            self.group.communicator.commit(self.group.compressor, self.state.flat["x"], self.state)
            self.group.memory.sent(self.state.flat, self.state.verdict.isnan())
        for index, held in self._held.items():
            for name, kept in held.items():
                view = self._views[name][index]
                view.add_(kept) if used[index] and not self.state.skipped else view.copy_(kept)
        self._grads.clear()
        self._sinks.clear()
        self._held.clear()
        self.state.flag.zero_()
        self.state.verdict.zero_()
        self.state.step += 1
        self.state.draws = 0

    def export(self) -> dict[str, dict[str, Tensor]]:
        """Each slot's tensors, by parameter and name: "residual" and others of gradient size are views in the
        parameter's shape, what is equal on all ranks is named "shared/…"."""
        exported: dict[str, dict[str, Tensor]] = {}
        for index, slot in enumerate(self.layout.slots):
            tensors = {f"shared/{name}": tensor for name, tensor in self.state.slots[index].items()}
            for name, views in self._views.items():
                if self._kept(name):
                    tensors["residual" if name == "x" else name] = views[index]
            if index in self._owed:
                tensors["residual"] = (
                    tensors["residual"] + self._owed[index] if "residual" in tensors else self._owed[index]
                )
            exported[slot.name] = tensors
        return exported

    def adopt(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Takes over a slot's exported tensors. A residual that this group has no memory for is sent, whole,
        with the next gradient; a shared tensor of another size keeps the rows that both have."""
        index = [slot.name for slot in self.layout.slots].index(name)
        for key, tensor in tensors.items():
            tensor = tensor.to(self.site.device)
            if key == "residual":
                if self.group.memory.remembers and self.compresses:
                    self._views["x"][index].copy_(tensor)
                else:
                    self._owed.pop(index, None)
                    if tensor.any():
                        self._owed[index] = tensor.clone()
            elif key.startswith("shared/"):
                mine = self.state.slots[index].get(key.removeprefix("shared/"))
                if mine is not None and mine.shape[1:] == tensor.shape[1:]:
                    rows = min(len(mine), len(tensor))
                    mine[:rows].copy_(tensor[:rows])
            elif key in self._views:
                self._views[key][index].copy_(tensor)

    def _staged(self) -> tuple[Tensor, list[Tensor]]:
        flat = self.state.kept.tensor("staged", (self.layout.numel,))
        return flat, self.layout.views(flat)


def _generator_of(slot: Slot) -> torch.Generator:
    """Depends on the parameter's name alone, so that all ranks and all plans start alike."""
    return torch.Generator().manual_seed(crc32(slot.name.encode()))
