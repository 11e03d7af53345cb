"""The processes of a long run: one per host has loaded torch, and forks itself for each rank that is wanted."""

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

from gradwire.lab.launch.launch import arguments
from gradwire.lab.network.network import Network
from gradwire.lab.soak.laws import Words

_READY = b"ready"


class RankProcess:
    """A process on a host, and where it stands: in which group, of how many, and how many steps it has made there since
    it was last asked; or that it has `ended`, and the `error` that it has not gone on from. All that it says is put
    beside it into `heard`."""

    def __init__(self, name: str, host: int, number: int, pipes: tuple[int, int], heard: "SimpleQueue[Heard]") -> None:
        self.name, self.host, self._number = name, host, number
        self.life, self.ranks, self.made, self.ended = "", 0, 0, False
        self.error = ""
        self._orders, self._said = os.fdopen(pipes[0], "w"), os.fdopen(pipes[1])
        self._reader = Thread(target=self._read, args=(heard,), daemon=True)
        self._reader.start()

    def _read(self, heard: "SimpleQueue[Heard]") -> None:
        for line in self._said:
            if line.endswith("\n"):  # else it was killed in the middle of it
                heard.put((self, json.loads(line)))
        self.ended = True

    def tell(self, **words: Any) -> None:
        """Gives it a line, if it is there to read it."""
        with suppress(BrokenPipeError):
            self._orders.write(json.dumps(words) + "\n")
            self._orders.flush()

    def end(self) -> None:
        """Kills it, and hears what it has said until then."""
        self.signal(signal.SIGKILL)
        self._reader.join()
        self._said.close()
        with suppress(BrokenPipeError):
            self._orders.close()

    def signal(self, number: int) -> None:
        """Sends it a signal, while it is there."""
        if not self.ended:
            with suppress(ProcessLookupError):
                os.kill(self._number, number)

    def hear(self, words: Words) -> None:
        """What it said of where it stands."""
        if "resumed" in words:
            self.life, self.ranks, self.made = words["life"], words["ranks"], 0
        self.made += "step" in words
        self.error = words.get("error", "" if "resumed" in words else self.error)


Heard = tuple[RankProcess, Words]


class HostProcess:
    """Where ranks are started, without each of them loading torch again."""

    def __init__(self, number: int, network: Network | None, log: IO[bytes], module: str) -> None:
        self._number = number
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, *arguments(["-m", module], network, number)]
        environment = _environment(network.interface if network else "lo")
        self.process = subprocess.Popen(command, stdin=theirs.fileno(), stderr=log, env=environment)
        theirs.close()

    def load(self) -> None:
        """Returns when it can start ranks. Raises RuntimeError where it cannot."""
        if self._asked.recv(16) != _READY:
            raise RuntimeError(f"host {self._number} ended before it began; ranks.log says why")

    def start(self, name: str, heard: "SimpleQueue[Heard]", **told: Any) -> RankProcess:
        """A new rank, which is told this first."""
        (read, orders), (said, write) = os.pipe(), os.pipe()
        socket.send_fds(self._asked, [b"fork"], [read, write])
        number = int(self._asked.recv(16))
        for theirs in (read, write):
            os.close(theirs)
        rank = RankProcess(name, self._number, number, (orders, said), heard)
        rank.tell(**told)
        return rank

    def close(self) -> None:
        """Ends it, and with it the ranks that it has started."""
        self.process.kill()
        self.process.wait()
        self._asked.close()


def _environment(interface: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    own = {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {**os.environ, **own}
