"""A rank of a long run that begins again from a checkpoint where a rank is lost: local steps, and shards.

Where a rank is lost, all others must end by themselves, each with an error that names it.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gradwire.frontends import Handle
from gradwire.lab.soak.faults import TIMEOUT_S
from gradwire.lab.soak.rank_messages import Orders, UncheckedError, checking, delayed, obey, report
from gradwire.lab.soak.soaked_local_steps import SoakedLocalSteps
from gradwire.lab.soak.soaked_model import hash_of
from gradwire.lab.soak.soaked_shards import SoakedShards

EVERY = 3
"""Steps, or rounds of local ones, from one checkpoint to the next."""


class SoakedModel(Protocol):
    """A model under one of the front ends."""

    handle: Handle

    def step(self, number: int, scale: float) -> None:
        """Step or round `number`, with the loss times `scale`. Raises AssertionError where something was lost."""
        ...

    def shared(self) -> list[Tensor]:
        """This rank's part of the tensors that replicas share."""
        ...

    def whole(self) -> Tensor:
        """The tensors that replicas share, whole, in one vector; all ranks call together."""
        ...

    def owed(self) -> Tensor:
        """The sum of all replicas' residuals; all ranks call together."""
        ...

    def state(self, saved: Path | None) -> dict[str, Any]:
        """State for torch.distributed.checkpoint: to be saved, or to load what is `saved` into."""
        ...

    def take(self, state: dict[str, Any]) -> None:
        """Takes over what was loaded into a `state`."""
        ...


class CheckpointedRank:
    """Trains with a fixed number of ranks, from checkpoint to checkpoint."""

    def __init__(self, store: Store, facts: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self._orders = Orders()
        self._home = Path(facts["folder"])
        self._job = facts["job"]
        # each life of the job has its own keys in the store
        dist.init_process_group(
            "gloo", store=PrefixStore(str(facts["life"]), store), rank=facts["rank"], world_size=facts["ranks"],
            timeout=timedelta(seconds=TIMEOUT_S),
        )  # fmt: skip
        made = SoakedLocalSteps if facts["front_end"] == "LocalSteps" else SoakedShards
        self._trained: SoakedModel = made(facts["turn"])

    def live(self) -> None:
        """Trains until a rank is lost, or this one is ordered to leave."""
        try:
            try:
                self._train(self._resume())
            except RuntimeError:
                # Gradwire's next call names the lost rank, as errors of torch's own collectives do not, unless it has
                # come back meanwhile
                self._trained.handle.verify()
                raise
        except UncheckedError as error:
            report(error=str(error), phase="checking")
        except RuntimeError as error:
            report(error=str(error), phase="training")

    def _resume(self) -> int:
        """Loads the last whole checkpoint, whose metadata is written last, and returns its step. Raises AssertionError
        where the residuals' sum is not what it was."""
        # the newest whole checkpoint
        step = max((int(path.parent.name) for path in self._home.glob("*/.metadata")), default=0)
        if step:
            path = self._home / str(step)
            # load into the state of this number of ranks; the residuals' sum with it, to compare
            state, owed = self._trained.state(path), torch.zeros_like(self._trained.owed())
            load({**state, "owed": owed}, checkpoint_id=path)
            self._trained.take(state)
            torch.testing.assert_close(self._trained.owed(), owed, rtol=1e-5, atol=1e-6)
        return step

    def _train(self, step: int) -> None:
        handle = self._trained.handle
        # the same life on all ranks: they began together
        life = handle.from_first(uuid4().hex)
        report(resumed=step, loaded=step > 0, life=life, ranks=dist.get_world_size(), **self._hashes())
        while True:
            # orders of the driver, obeyed before or after the step
            orders, skipped = self._orders.take(), handle.stats().skipped
            self._trained.step(step, delayed(orders))
            step += 1
            # leave, or flip a bit
            obey(orders, handle, self._trained.shared())
            # heal what was flipped
            healed = handle.verify(heal=True)
            if step % EVERY == 0:
                self._save(step)
            taken = handle.stats().skipped == skipped
            report(step=step, life=life, taken=taken, healed=healed, saved=step % EVERY == 0, **self._hashes())

    def _save(self, step: int) -> None:
        with checking():
            state = {**self._trained.state(None), "owed": self._trained.owed()}
            save(state, checkpoint_id=self._home / str(step))

    def _hashes(self) -> dict[str, str]:
        """Hashes of model and residuals, and the job, whose checkpoints are compared with them."""
        return {"model": hash_of(self._trained.whole()), "owed": hash_of(self._trained.owed()), "job": self._job}
