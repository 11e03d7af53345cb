"""Calls on threads of their own, also while the interpreter ends, when Python 3.12 starts no more threads."""

import gc
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from gradwire.transports import bounded_calls
from gradwire.transports.bounded_calls import on_thread, run_bounded
from tests.support.ranks import ended_ranks
from tests.support.waiting import wait_until

STARTS_NONE = """
import atexit, threading

def start(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def no_more():
    threading.Thread.start = start
"""
"""What Python 3.12 does at exit, for other versions: `atexit.register(no_more)`, last."""

AT_EXIT = f"""
import importlib.util, sys
{STARTS_NONE}
spec = importlib.util.spec_from_file_location("bounded_calls", sys.argv[1])
calls = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calls)
made = []

def ends():
    print(calls.on_thread(made.clear), len(calls.run_bounded([made.clear, lambda: made.append(1)], 5.0)), made)

atexit.register(ends)
if sys.version_info[:2] != (3, 12):
    atexit.register(no_more)
print(calls.on_thread(lambda: "on a thread").result(5.0))
"""


def pythons() -> list[str]:
    """This Python, and one of version 3.12 where there is one."""
    installed = map(str, Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12"))
    return [sys.executable, *filter(None, [next(installed, shutil.which("python3.12"))])]


@pytest.mark.parametrize("python", pythons())
def test_a_call_that_no_thread_can_make_is_left_out_at_exit(python: str):
    ended = subprocess.run(
        [python, "-c", AT_EXIT, bounded_calls.__file__], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "on a thread\nNone 2 []\n"
    assert ended.stderr == ""


def test_calls_are_made_at_once_and_waited_for_together():
    met, never = threading.Barrier(2), threading.Event()
    assert run_bounded([met.wait, met.wait, raises], 20.0) == []
    assert met.n_waiting == 0
    assert run_bounded([never.wait], 0.05) == []
    never.set()


def test_a_call_raises_where_its_result_is_asked_for():
    result = on_thread(raises)
    assert result is not None
    with pytest.raises(ArithmeticError, match="too much"):
        result.result(20.0)


def test_a_call_that_raises_keeps_nothing_alive():
    """Not even until a garbage collection: a process group that is left ends at once."""

    class Group:
        def end(self) -> None:
            raise ArithmeticError("too much")

    group = Group()
    gone = weakref.ref(group)
    gc.disable()
    try:
        run_bounded([group.end], 20.0)
        del group
        assert wait_until(lambda: gone() is None, 5.0)
    finally:
        gc.enable()


def raises() -> None:
    raise ArithmeticError("too much")


ENDS = f"""
import atexit, os, sys
import torch, torch.distributed as dist
import gradwire as gw
{STARTS_NONE}
dist.init_process_group("gloo")
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
gw.attach(ddp, gw.TopK(0.5))
ended = dist.get_rank() == 1
try:
    for step in range(5):
        ddp(torch.ones(2, 5)).sum().backward()
        if ended and step == 2:
            atexit.register(no_more)
            sys.exit(0)
except RuntimeError as error:
    print(error)
"""


def test_a_process_that_ends_by_itself_says_so_where_no_thread_can_start_any_more():
    first, second = ended_ranks(["-c", ENDS], 2)
    assert "has detached, or its process has ended, after 3 steps" in first.out, first.err
    assert (second.code, second.err) == (0, "")
