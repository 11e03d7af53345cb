"""What a job has sent so far, and where its time went."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """Totals of one rank since the handle was made.

    `wire_bytes` were handed to the network, `dense_bytes` are what plain DDP would have sent. `encode_s` and
    `decode_s` are spent computing, `wire_s` is the sum over collectives from start to completion (several are
    in flight at once), `wait_s` is from the last gradient of a step until all means were there: what training
    waits for.
    """

    steps: int
    wire_bytes: int
    dense_bytes: int
    encode_s: float
    wire_s: float
    decode_s: float
    wait_s: float

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than plain DDP."""
        return self.dense_bytes / self.wire_bytes if self.wire_bytes else float("inf")
