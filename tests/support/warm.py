"""A Python that has imported torch, from which tests fork processes: each begins in a twentieth of a second, not after
seconds of imports.

`Forked(["-m", "tests.processes.victims", "topk"])` is `subprocess.Popen([sys.executable, "-m", ...])` otherwise, and
takes its options. All forked processes have the server's hash seed; those of `gradwire.lab.launch` have their own.
`program("-m", "gradwire", "bench", ...)` is `python -m gradwire bench ...`, whose ranks are forked too.
"""

import atexit
import ctypes
import gc
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from gradwire.lab.network.nsenter import die_with, enter

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "torch", "torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "pytest", "gradwire.cli.bench_command", "gradwire.cli.train_command", "gradwire.lab.jobs.bench_job",
    "gradwire.lab.jobs.plan_job", "gradwire.lab.jobs.train_job", "sklearn.datasets", "transformers.modeling_utils",
)  # fmt: skip
PR_SET_CHILD_SUBREAPER = 36


class Forked(subprocess.Popen):
    """A process that runs `python *argv`, forked from the server once that has imported `imports` as well."""

    def __init__(
        self, argv: Sequence[str], imports: Sequence[str] = (), *, rank_in: Sequence[str] | None = None, **options: Any
    ) -> None:
        """A rank of the lab enters the namespaces `rank_in` and dies with this process."""
        self._imports, self._namespaces = list(imports), rank_in
        super().__init__(list(argv), **options)

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, *others,
    ) -> None:  # fmt: skip
        """Replaces Popen's fork and exec."""
        command = {"argv": args, "cwd": str(cwd or os.getcwd()), "env": dict(env or os.environ)}
        command |= {"imports": self._imports, "session": start_new_session, "rank in": self._namespaces}
        files = [own if own != -1 else inherited for inherited, own in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = _server().fork(command, files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def forked_rank(handler: SubprocessHandler, command: Sequence[str], env: dict[str, str]) -> subprocess.Popen:
    """Replaces `SubprocessHandler._popen`, by which torchrun and `gradwire.lab.launch` start a rank."""
    options: dict[str, Any] = {"env": env, "stdout": handler._stdout, "stderr": handler._stderr}
    options["start_new_session"] = True
    if command[1] == "-u":  # torchrun's
        return Forked(command[2:], **options)
    own = command.index(str(os.getpid()))
    program = command.index("--")
    return Forked(command[program + 2 :], rank_in=command[own + 1 : program], **options)


def program(*argv: str, **options: Any) -> Forked:
    """`python *argv`, forked; so are the ranks that torchrun or the lab start in it. Takes Popen's options."""
    return Forked(["-m", "tests.support.program", *argv], ["gradwire.cli"], **options)


class _Server:
    """The process that forks, and ends when this one does; `start` begins it with this process's socket and its own."""

    def __init__(self, start: Callable[[socket.socket, socket.socket], object]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start(self._socket, theirs)

    def fork(self, command: dict[str, Any], files: list[int]) -> int:
        """The new process's number. Its parent has ended, so that it becomes a child of this process, the subreaper."""
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        socket.send_fds(self._socket, [json.dumps(command).encode()], files)
        answer = self._socket.recv(100)
        prctl(PR_SET_CHILD_SUBREAPER, 0)
        if not answer:
            raise RuntimeError(f"the server of forked processes has ended; its imports were {command['imports']}")
        return int(answer)


_servers: list[_Server] = []


def _server() -> _Server:
    if not _servers:
        _servers.append(_Server(_start))
    return _servers[0]


def fork_server() -> None:
    """Has `Forked` processes come from a fork of this process, which has imported torch and no threads yet."""
    _servers.append(_Server(_fork))


def _start(ours: socket.socket, theirs: socket.socket) -> object:
    command = [sys.executable, "-m", "tests.support.warm", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
    for last in (ours.close, process.wait, process.kill):
        atexit.register(last)
    return process


def _fork(ours: socket.socket, theirs: socket.socket) -> None:
    if os.fork() == 0:
        ours.close()
        serve_and_end(theirs)


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Forks a process for each message. Returns its command in the process, and None in the server when that ends."""
    gc.disable()  # nothing that is imported is garbage
    for name in IMPORTED:
        import_module(name)
    while True:
        message, files, *_ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return None
        command = json.loads(message)
        for name in command["imports"]:
            import_module(name)
        gc.freeze()
        if (number := _fork_orphan()) == 0:
            gc.enable()
            connection.close()
            if command["session"]:
                os.setsid()
            if command["rank in"] is not None:
                enter(command["rank in"])
                die_with(os.getppid())
            for target, file in enumerate(files):
                os.dup2(file, target)
                os.close(file)
            return command
        for file in files:
            os.close(file)
        connection.send(str(number).encode())


def _fork_orphan() -> int:
    """As os.fork, but the new process's parent has ended already."""
    reads, writes = os.pipe()
    if (parent := os.fork()) == 0:
        parent = os.getpid()
        if (number := os.fork()) == 0:
            os.close(reads)
            os.close(writes)
            while os.getppid() == parent:
                time.sleep(0.0005)
            return 0
        os.write(writes, str(number).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    number = int(os.read(reads, 20))
    os.close(reads)
    os.close(writes)
    return number


def run(command: dict[str, Any]) -> None:
    """As if Python had been started with this command."""
    import torch

    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    # what was read from the server's files and variables
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    execute(*command["argv"])


def execute(first: str, *rest: str) -> None:
    """As `python first *rest` does it. The working folder is on no path of this process, so -P changes nothing."""
    if first == "-P":
        return execute(*rest)
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = [*rest]
        sys.modules.pop(rest[0], None)  # it was imported for what it imports; runpy warns of a module that is there
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


def end(code: int) -> None:
    """Ends the process as Python does, but for taking apart what it has imported, which takes half a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code_of(call: Callable[[], None]) -> int:
    try:
        call()
        return 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


def serve_and_end(connection: socket.socket) -> None:
    """Serves, and ends this process; so does each that it forked."""
    with connection:
        wanted = serve(connection)
    end(exit_code_of(partial(run, wanted)) if wanted else 0)


if __name__ == "__main__":
    serve_and_end(socket.socket(fileno=int(sys.argv[1])))
