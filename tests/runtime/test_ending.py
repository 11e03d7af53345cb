"""Who is blamed for the end of a job, by what the ranks' marks say."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.runtime import failures
from gradwire.runtime.failures import Ending, Interrupted, Left, Mark

WELL = Mark(None, False, 0.0)
HOSTS = ["a", "b", "c"]


def ending_of(rank: int, words: dict[str, str], paused_s: float = 0.0) -> Ending:
    """Of one rank of three, with the words in the store."""
    store = SimpleNamespace(set=words.__setitem__, get=lambda key, timeout_s: words.get(key))
    mesh: Any = SimpleNamespace(rank=rank, ranks=3, store=store, timeout_s=1.0, abort=lambda reason: None)
    return Ending(mesh, lambda: HOSTS, lambda: 0.0, lambda: paused_s)


def blamed(marks: dict[int, Mark], paused_s: float, monkeypatch: pytest.MonkeyPatch) -> str:
    """By rank 0 of three, whose wait ended for a reason that names nobody."""
    monkeypatch.setattr(failures, "OTHERS_S", 0.1)
    words = {f"{word}/{rank}": json.dumps(mark) for rank, mark in marks.items() for word in ("ended", "heard")}
    error = Interrupted("reducing ended", "timed out")
    ending_of(0, words, paused_s).end(error)
    return str(error).removeprefix("reducing ended: ")


@pytest.mark.parametrize(
    ("marks", "paused_s", "why"),
    [
        ({1: WELL, 2: WELL}, 0.0, "timed out"),
        ({1: Mark("out of memory", False, 0.0), 2: WELL}, 18.0, "out of memory"),
        ({1: WELL}, 18.0, "rank 2 (host c) was lost"),
        ({1: WELL, 2: WELL}, 18.0, "rank 0 (host a) did not run for 18 s"),
        ({1: WELL, 2: Mark(None, False, 9.0)}, 7.0, "rank 2 (host c) did not run for 9 s"),
        (
            {1: Mark(None, False, 0.0, detached=True, step=7), 2: WELL},
            0.0,
            "rank 1 (host b) has detached, or its process has ended, after 7 steps",
        ),
        ({1: Mark(None, True, 0.0), 2: Mark(None, False, 9.0)}, 0.0, "timed out"),  # what ended it was a rank that left
    ],
)
def test_who_is_blamed(marks: dict[int, Mark], paused_s: float, why: str, monkeypatch: pytest.MonkeyPatch):
    assert blamed(marks, paused_s, monkeypatch) == why


def test_a_rank_that_leaves_says_so():
    words: dict[str, str] = {}
    ending_of(1, words).end(Left("rank 1 has left the job"))
    assert json.loads(words["ended/1"])[:3] == [None, True, 0.0]
