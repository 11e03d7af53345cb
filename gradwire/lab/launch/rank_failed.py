"""The error of a launch in which a rank failed. Nothing here loads torch."""

import re
import signal
from typing import Any

_RANK_PREFIX = re.compile(r"^\[rank\d+\]:(?!\[)\s*")
"""torch puts it before each line of a traceback."""
_LAST_FRAME = re.compile(r'.*^\[rank\d+\]:   File "', re.MULTILINE | re.DOTALL)
_RAISED = re.compile(r"^\[rank\d+\]: (\w[\w.]*(?:: .*)?)$", re.MULTILINE)
"""An exception, behind the frames of its traceback; more lines of its message may follow."""


class RankFailed(RuntimeError):
    """A rank ended by a signal (`exit_code` is minus its number) or with an `exit_code` other than 0."""

    def __init__(self, rank: int, exit_code: int, stderr: str) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.stderr = stderr
        how = f"exit code {exit_code}" if exit_code > 0 else f"signal {signal.Signals(-exit_code).name}"
        lines = stderr.splitlines()
        # gloo may abort a rank that has raised: then its last words are not the reason
        raised = [line for line in lines if _RANK_PREFIX.match(line)]
        reason = _RAISED.search(_LAST_FRAME.sub("", "\n".join(raised), count=1))
        last_line = reason[1] if reason else _RANK_PREFIX.sub("", (raised or lines or [""])[-1])
        super().__init__(f"rank {rank} ended with {how}" + (f": {last_line}" if last_line else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return RankFailed, (self.rank, self.exit_code, self.stderr)
