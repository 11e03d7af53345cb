"""The output of a reduction: a group's mean, written to the memory of its gradients."""

from collections.abc import Callable, Sequence

from torch import Tensor

from gradwire.ops.backend import backend_for
from gradwire.ops.gradients import Gradients
from gradwire.ops.host import on_host
from gradwire.ops.matrices import Batch
from gradwire.ops.vectors import Scalar


class Mean:
    """A group's mean (n,), to be written when the last collective is over: all of it as one `vector`, or all of it by
    `parts` or `matrices`, which spares a copy where the gradients do not lie one after another."""

    def __init__(self, scratch: Callable[[], Tensor], gradients: Gradients | None = None) -> None:
        self._scratch, self._gradients = scratch, gradients
        self._vector = gradients and gradients.flat

    @classmethod
    def of(cls, out: Tensor) -> "Mean":
        """A mean that is written to a vector (n,)."""
        return cls(lambda: out)

    def vector(self) -> Tensor:
        """The mean (n,) float32, to be written: the gradients' memory, or scratch of all groups, from which
        `write_means` copies."""
        if self._vector is None:
            self._vector = self._scratch()
        return self._vector

    def parts(self) -> Sequence[Tensor]:
        """The mean in vectors, n elements one after another, to be written. Several only where the backend writes to
        each; others would make a vector of all of them first."""
        # in place, unless part of the mean is in the vector already
        in_place = self._gradients and self._vector is None and self._gradients.in_place
        return in_place if in_place and backend_for(in_place[0]).writes_anywhere else [self.vector()]

    def matrices(self, batch: Batch) -> Sequence[Tensor]:
        """The batch's matrices (k, rows, columns), to be written, in one view; on a CPU in several where the gradients
        do not lie one after another. A GPU copies all means at once in less time."""
        gradients = self._gradients if self._vector is None else None
        in_place = gradients and on_host(gradients.tensors[0].device) and gradients.matrices_in_place(batch)
        return in_place or [batch.of(self.vector()[batch.start :])]

    def write_means(self, scale: Scalar | None, nonfinite: Tensor | None = None) -> None:
        """Replaces the gradients by the mean, times `scale`; see `Gradients.write_means`."""
        assert self._gradients is not None
        self._gradients.write_means(self._vector, scale, nonfinite)
