"""The processes of a long run, seen from its driver: a fork server per host, and the ranks it has forked."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from gradwire.lab.launch.launch import arguments, import_path
from gradwire.lab.network.network import Network
from gradwire.lab.soak.laws import Facts

_READY = b"ready"


class RankProcess:
    """A rank's process on a host: its group (`life`), of how many `ranks`, the steps `made` there since the driver set
    them to 0, whether it has `ended`, and the last `error`. Its reports go into the queue `heard`."""

    def __init__(self, name: str, host: int, number: int, pipes: tuple[int, int], heard: "SimpleQueue[Heard]") -> None:
        self.name = name
        self.host = host
        self._number = number
        self.life = ""
        self.ranks = 0
        self.made = 0
        self.ended = False
        # orders go in, reports come out, on a thread of their own
        self.error = ""
        self._orders, self._reports = os.fdopen(pipes[0], "w"), os.fdopen(pipes[1])
        self._reader = Thread(target=self._read, args=(heard,), daemon=True)
        self._reader.start()

    def _read(self, heard: "SimpleQueue[Heard]") -> None:
        with self._reports:
            for line in self._reports:
                if line.endswith("\n"):  # else it was killed in the middle of it
                    heard.put((self, json.loads(line)))
        self.ended = True

    def send(self, **facts: Any) -> None:
        """Sends the process a line, if it is still there."""
        with suppress(BrokenPipeError):
            self._orders.write(json.dumps(facts) + "\n")
            self._orders.flush()

    def end(self) -> None:
        """Kills the process, and reads its last reports."""
        self.signal(signal.SIGKILL)
        self._reader.join()
        with suppress(BrokenPipeError):
            self._orders.close()

    def signal(self, number: int) -> None:
        """Sends the process a signal, if it is still there."""
        if not self.ended:
            with suppress(ProcessLookupError):
                os.kill(self._number, number)

    def hear(self, facts: Facts) -> None:
        """Updates the state by a report."""
        if "resumed" in facts:
            self.life = facts["life"]
            self.ranks = facts["ranks"]
            self.made = 0
        self.made += "step" in facts
        self.error = facts.get("error", "" if "resumed" in facts else self.error)


Heard = tuple[RankProcess, Facts]


class HostProcess:
    """A host's fork server, which starts ranks without loading torch again."""

    def __init__(self, number: int, network: Network | None, log: IO[bytes], module: str) -> None:
        self._number = number
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, *arguments(["-m", module], network, number)]
        environment = _environment(network.interface if network else "lo")
        self.process = subprocess.Popen(command, stdin=theirs.fileno(), stderr=log, env=environment)
        theirs.close()

    def load(self) -> None:
        """Waits until it can start ranks. Raises RuntimeError where it cannot."""
        if self._asked.recv(16) != _READY:
            raise RuntimeError(f"host {self._number} ended before it began; ranks.log says why")

    def start(self, name: str, heard: "SimpleQueue[Heard]", **facts: Any) -> RankProcess:
        """Starts a rank, and sends it these facts first."""
        # two pipes, of which the child gets an end each
        (read, orders), (reports, write) = os.pipe(), os.pipe()
        socket.send_fds(self._asked, [b"fork"], [read, write])
        number = int(self._asked.recv(16))
        # the child has copies of its ends: only then does a closed pipe say that it died
        for theirs in (read, write):
            os.close(theirs)
        rank = RankProcess(name, self._number, number, (orders, reports), heard)
        rank.send(**facts)
        return rank

    def close(self) -> None:
        """Ends the fork server and its ranks."""
        self.process.kill()
        self.process.wait()
        self._asked.close()


def _environment(interface: str) -> dict[str, str]:
    own = {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {**os.environ, "PYTHONPATH": import_path(), **own}
