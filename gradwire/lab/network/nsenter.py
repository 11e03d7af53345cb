"""Become a rank: enter an emulated host, promise to die with the launcher, run the command.

Run as a script by `gradwire.lab.launch.launch`: `nsenter.py LAUNCHER_PID [NAMESPACE ...] -- COMMAND ...`. It imports
the standard library only, as a process that has started threads may not enter a user namespace.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def enter(namespaces: list[str]) -> None:
    """Enter each namespace in turn; all are opened first, since the first may hide the others."""
    # os.setns is there from Python 3.12 on
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace in [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in namespaces]:
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def die_with(launcher_pid: int) -> None:
    """Have the kernel kill this process when its parent, the launcher, dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        sys.exit("the launcher died before this rank began")


def main() -> None:
    """Replace this process by the command after `--`."""
    split = sys.argv.index("--")
    launcher_pid, *namespaces = sys.argv[1:split]
    command = sys.argv[split + 1 :]
    enter(namespaces)
    die_with(int(launcher_pid))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
