"""An emulated network: hosts that are network namespaces, joined by links of a chosen speed."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from errno import EACCES, ENOSPC, EPERM
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from gradwire.lab.network.link import Link
from gradwire.lab.network.traffic import InterfaceTraffic

_PROCESS_FILE = Path(__file__).with_name("network_process.py")
_MAX_HOSTS = 254
"""The addresses of a /24 network, less one."""
_SETTINGS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user.max_user_namespaces": ("0", "10000"),
    "user.max_net_namespaces": ("0", "10000"),
}
"""Settings that may forbid a user to make namespaces: the forbidding value and the allowing one."""


_NOT_ALLOWED = (EPERM, EACCES, ENOSPC)
"""Errors of a user without the rights; ENOSPC is for too many namespaces."""


class NetworkUnavailable(RuntimeError):
    """This machine or this user may not emulate a network."""


class Network:
    """`hosts` emulated hosts on one switch, each behind a `link` of its own, shaped in both directions.

    A link carries what an Ethernet of its speed carries. One of None, or above 10 gbit, is not shaped. Use as a context
    manager. Everything belongs to an owner process that dies with this one, so nothing is left behind even by SIGKILL,
    and networks at the same time do not see each other. An ordinary user gets it inside a user namespace.

    Raises ValueError for a bad number of hosts and NetworkUnavailable, on entering, without the rights.
    """

    interface = "eth0"

    def __init__(self, hosts: int, link: Link | None) -> None:
        if not 1 <= hosts <= _MAX_HOSTS:
            raise ValueError(f"a network has 1 to {_MAX_HOSTS} hosts, not {hosts}")
        self.hosts = hosts
        self.link = link
        self._process: subprocess.Popen[str] | None = None
        self._namespaces: list[list[str]] = []
        self._lock = Lock()

    def __enter__(self) -> Self:
        if find_spec("pyroute2") is None:
            raise NetworkUnavailable("an emulated network needs pyroute2: pip install 'gradwire[lab]'")
        # A session of its own keeps the terminal's Ctrl-C from it; -P keeps this folder off its path.
        command = [sys.executable, "-P", str(_PROCESS_FILE), str(os.getpid())]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        # build, then shape; where either fails, nothing stays behind
        try:
            addresses = [f"{self.address(host)}/24" for host in range(self.hosts)]
            self._namespaces = self._ask("build", addresses, self.interface)
            self.set_link(self.link)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def address(self, host: int) -> str:
        """The IPv4 address of a host."""
        return f"10.77.0.{host + 1}"

    def namespaces(self, host: int) -> list[str]:
        """Paths of the namespaces that a process of this user enters, in order, to be on a host."""
        return self._namespaces[host]

    def set_link(self, link: Link | None) -> None:
        """Change the speed of every link, also while ranks run (TCP sends again what waited in queues)."""
        self._ask("shape", link.bucket if link and link.shaped else None)
        self.link = link

    def counters(self) -> list[InterfaceTraffic]:
        """Traffic of each host's interface so far."""
        return [InterfaceTraffic(*counts) for counts in self._ask("traffic")]

    def _ask(self, method: str, *arguments: object) -> Any:
        assert self._process, "a Network is made by `with Network(...) as network:`"
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        # one question at a time: several threads may ask
        with self._lock:
            with suppress(BrokenPipeError):
                print(json.dumps([method, *arguments]), file=requests, flush=True)
            answer = json.loads(answers.readline() or '{"error": "the process that owns it died"}')
        if "error" in answer:
            advice = f"; {_forbidden()}" if answer.get("code") in _NOT_ALLOWED else ""
            raise NetworkUnavailable(f"no emulated network: {answer['error']}{advice}")
        return answer["result"]

    def _stop(self) -> None:
        assert self._process
        with self._process:  # closes its pipes and waits for it
            self._process.kill()
        self._process = None


def _forbidden() -> str:
    """The setting that forbids namespaces on this machine, and its remedy."""
    for setting, (forbidding, allowing) in _SETTINGS.items():
        path = Path("/proc/sys", *setting.split("."))
        if path.exists() and path.read_text().strip() == forbidding:
            return f"this machine forbids it by {setting}={forbidding}: run `sudo sysctl {setting}={allowing}`"
    return "it needs root or user namespaces, which containers have with --privileged"
