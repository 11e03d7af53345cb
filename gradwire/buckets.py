"""Who waits for the means of which slots: DDP's buckets, each with a future."""

from dataclasses import dataclass, field

from torch import Tensor
from torch.futures import Future


@dataclass
class Bucket:
    """Where to put the means of some slots, and whom to tell; `epoch` counts the steps."""

    sinks: dict[int, Tensor]
    future: Future[Tensor]
    buffer: Tensor
    epoch: int


@dataclass
class Buckets:
    """Buckets of the step under way. Used by the engine's thread alone."""

    waiting: list[Bucket] = field(default_factory=list)
    means: dict[int, Tensor] = field(default_factory=dict)
    epoch: int = 0

    def watch(self, bucket: Bucket) -> None:
        """Takes a bucket; it is served at once where its step has ended already."""
        self.waiting.append(bucket)
        self._serve()

    def deliver(self, means: dict[int, Tensor], epoch: int) -> None:
        """Serves the buckets of step `epoch` with the means of all slots, valid until the next step."""
        self.means, self.epoch = means, epoch
        self._serve()

    def fail(self, error: BaseException) -> None:
        """Tells all buckets that no means will come."""
        for bucket in self.waiting:
            bucket.future.set_exception(error)  # pyright: ignore[reportArgumentType]
        self.waiting.clear()

    def _serve(self) -> None:
        served = [bucket for bucket in self.waiting if bucket.epoch == self.epoch]
        self.waiting = [bucket for bucket in self.waiting if bucket.epoch != self.epoch]
        for bucket in served:
            for slot, sink in bucket.sinks.items():
                if sink.data_ptr() != self.means[slot].data_ptr():  # dense groups are reduced where they are wanted
                    sink.copy_(self.means[slot])
        for bucket in served:
            bucket.future.set_result(bucket.buffer)
