"""States of torch's generators beside the training's."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch
from torch import Generator
from torch.random import fork_rng


class RandomState:
    """A state of torch's CPU generator, for what is not to draw from the training's.

    A GPU's generator is left alone: `torch.manual_seed` would seed it too, and all ranks would drop out the same."""

    def __init__(self, seed: int) -> None:
        self._state = Generator().manual_seed(seed).get_state()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Context in which torch draws from this state, and goes on in it the next time; afterwards torch's generator
        is as it was."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(outside)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Context in which a model is made: the CPU's generator, and that of a GPU that this process uses, begin with the
    seed; afterwards both are as they were."""
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with fork_rng(gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        yield


def mixed(*numbers: int) -> int:
    """A seed of several numbers: the first 32 bits, all that torch's CPU generator takes, of their SHA-256.

    A sum would give seed 1's first epoch the order of seed 0's second."""
    return int.from_bytes(sha256(repr(numbers).encode()).digest()[:4], "little")
