"""Guards for forked children. A child has copies of its parent's objects, but none of the threads that serve them, and
shares the parent's connections, so it must leave them alone."""

import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol

FORKED = (
    "this is a forked child of the process that exchanges gradients, such as a DataLoader's worker; make such calls in "
    "the process that called attach()"
)


class Inherited(Protocol):
    """An object that has to be made harmless in a child."""

    def after_fork(self) -> None:
        """Runs in the child, before anything else does."""
        ...


_inherited: "weakref.WeakSet[Any]" = weakref.WeakSet()


def register(inherited: Inherited) -> None:
    """Has `after_fork` called in every child that is forked while the object is there."""
    _inherited.add(inherited)


def finalize(owner: object, call: Callable[..., None], *arguments: Any) -> "weakref.finalize[..., Any]":
    """`weakref.finalize`, except in a forked child, where the resources belong to the parent."""
    return weakref.finalize(owner, _in_process, os.getpid(), call, *arguments)


def keep_for_ever(inherited: object) -> None:
    """Keeps an object's destructor from running in this process: that of a gloo group waits for threads, of which a
    child has none."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


class Elsewhere:
    """A stand-in, in a forked child, for an object of its parent's: every attribute raises RuntimeError."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(FORKED)


def _in_process(pid: int, call: Callable[..., None], *arguments: Any) -> None:
    if os.getpid() == pid:
        call(*arguments)


def _after_fork() -> None:
    for inherited in list(_inherited):
        inherited.after_fork()


os.register_at_fork(after_in_child=_after_fork)
