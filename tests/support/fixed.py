"""Jobs on a GPU whose gradients lie in the same places at every step, as in DDP's buckets: those that are recorded."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support.harness import Job
from tests.support.pretend_cuda import GPU, on_gpu, real

PARAMETERS = {
    "first.weight": torch.empty(31, 17), "first.bias": torch.empty(31), "second.weight": torch.empty(12, 33),
    "scale": torch.empty(1), "third.weight": torch.empty(31, 17),
}  # fmt: skip
"""Of which two have equal shapes, and one is a scalar."""


class Fixed(Job):
    """On a GPU that is pretended, as `tests.support.tape` has it."""

    device = GPU

    def begin(self) -> None:
        """From now on gradients lie in new places."""
        zeros = [slot.view(torch.zeros(slot.numel)) for slot in self.slots]
        self.places = [[self.there(zero) for zero in zeros] for _ in self.runtimes]
        for runtime in self.runtimes:
            runtime.fix_addresses(True)

    def there(self, tensor: Tensor) -> Tensor:
        """A copy on the GPU."""
        return on_gpu(tensor)

    def step(self, grads: Any) -> list[list[Tensor]]:
        for runtime in self.runtimes:
            runtime.open_step()
        for places, own in zip(self.places, grads, strict=True):
            for place, grad in zip(places, own, strict=True):
                real(place).zero_() if grad is None else real(place).copy_(grad)
        self.submit(grads)
        self.finish()
        return [[real(place).clone() for place in own] for own in self.places]

    def submit(self, grads: Any) -> None:
        """Submits what lies in the places; `grads`, by rank and slot, says which are absent."""
        for runtime, places, own in zip(self.runtimes, self.places, grads, strict=True):
            for slot, grad in enumerate(own):
                (runtime.submit if grad is not None else runtime.submit_absent)(slot, places[slot])


Script = Callable[[Fixed, Callable[[Any], None]], None]
"""What is done with a job: steps, with what they return given to a function, and other calls."""
