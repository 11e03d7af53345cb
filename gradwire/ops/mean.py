"""Where a group's mean goes: to where its gradients lie."""

from collections.abc import Callable, Sequence

from torch import Tensor

from gradwire.ops.backend import backend_for
from gradwire.ops.gradients import Gradients
from gradwire.ops.host import on_host
from gradwire.ops.matrices import Batch
from gradwire.ops.vectors import Scalar


class Mean:
    """A group's mean (n,), which is yet to be written: all of it as one `vector`, or all of it by `parts` or
    `matrices`, which spares a copy where the gradients do not lie one after another."""

    def __init__(self, scratch: Callable[[], Tensor], gradients: Gradients | None = None) -> None:
        self._scratch, self._gradients = scratch, gradients
        self._vector = gradients and gradients.flat

    @classmethod
    def of(cls, out: Tensor) -> "Mean":
        """The mean goes to a vector (n,)."""
        return cls(lambda: out)

    def vector(self) -> Tensor:
        """(n,) float32: where the gradients lie, or room whence the mean is copied there."""
        if self._vector is None:
            self._vector = self._scratch()
        return self._vector

    def parts(self) -> Sequence[Tensor]:
        """Vectors that are n elements one after another; several only where decoding writes to each, while
        others need room for all of them."""
        in_place = self._gradients and self._vector is None and self._gradients.in_place
        return in_place if in_place and backend_for(in_place[0]).writes_anywhere else [self.vector()]

    def matrices(self, batch: Batch) -> Sequence[Tensor]:
        """The batch's matrices (k, rows, columns) in one view, or in several where the gradients do not lie one after
        another, which costs a GPU more than to copy all means at once."""
        gradients = self._gradients if self._vector is None else None
        in_place = gradients and on_host(gradients.tensors[0].device) and gradients.matrices_in_place(batch)
        return in_place or [batch.of(self.vector()[batch.start :])]

    def write_means(self, scale: Scalar | None) -> None:
        """The gradients become the mean, times `scale`."""
        assert self._gradients is not None
        self._gradients.write_means(self._vector, scale)
