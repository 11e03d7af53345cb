"""Going back to the anchors with all that a replica has of its own, where its numbers are not finite."""

import logging
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.frontends.local_steps.fragments import Fragment
from gradwire.frontends.model_replica import ModelReplica
from gradwire.frontends.values import local

AVERAGES = torch.float32, torch.float64, torch.bfloat16, torch.float16
"""The types of buffers that may become not finite; 8 bits are quantized weights."""
_log = logging.getLogger("gradwire")


class GoingBack:
    """Resets a replica whose numbers are not finite: its parameters to the anchors, buffers of real numbers, such as
    BatchNorm's averages, to a copy from when they were last finite, and its inner optimizer's state."""

    def __init__(self, replica: ModelReplica, inner: Optimizer, all_of: Callable[[bool], bool] = bool) -> None:
        self._model, self._parameters = replica.model, replica.parameters
        self._inner, self._all_of = inner, all_of
        self._finite = {name: buffer.clone() for name, buffer in self._buffers()}

    @torch.no_grad()
    def keep(self) -> None:
        """Copies what is finite of the buffers."""
        for name, buffer in self._buffers():
            if (kept := self._finite.get(name)) is None or kept.shape != buffer.shape:
                self._finite[name] = buffer.clone()
            else:
                kept.copy_(torch.where(buffer.isfinite(), buffer, kept))

    @torch.no_grad()
    def go_back(self, fragments: Sequence[Fragment]) -> None:
        """Resets parameters to the anchors, and what is not finite of buffers to the copy; drops inner state that is
        not finite on some shard."""
        for fragment in fragments:
            fragment.reset()
            fragment.keep_sent()
            for parameter in (self._parameters[name] for name in fragment.parameters):
                tensors = (local(v) for v in self._inner.state.get(parameter, {}).values() if isinstance(v, Tensor))
                if not self._all_of(all(bool(tensor.isfinite().all()) for tensor in tensors)):
                    self._inner.state.pop(parameter, None)
        for name, buffer in self._buffers():
            if (kept := self._finite.get(name)) is not None and kept.shape == buffer.shape:
                buffer.copy_(torch.where(buffer.isfinite(), buffer, kept))

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        # a model may replace them
        buffers = ((name, local(buffer.detach())) for name, buffer in self._model.named_buffers())
        return ((name, buffer) for name, buffer in buffers if type(buffer) is Tensor and buffer.dtype in AVERAGES)


def warn_of_dropped(step: int, own: bool) -> None:
    """Logs that a round counts for no replica, and whether for this one's `own` numbers."""
    whose = "this replica's own" if own else "some replica's"
    _log.warning("the round that ended at inner step %d counts for no replica: %s numbers were not finite", step, whose)
