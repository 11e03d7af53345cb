"""The process that owns an emulated network. Run as a script by `gradwire.lab.network.network`.

Nothing here has a name or a file: the namespaces live in this process's descriptors, so the kernel
frees them when it ends, however it ends. It ends when its owner does. Requests (`[method, *arguments]`)
come as JSON lines on stdin, answers (`{"result": ...}` or `{"error": ..., "code": ...}`) leave on stdout.
"""

import ctypes
import json
import os
import select
import sys
from collections.abc import Iterator
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import Any, NamedTuple

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import TC_H_ROOT

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
RT_SCOPE_LINK = 253
POLL_S = 0.2
"""How often it looks whether its owner is still there."""


class EmulatedHost(NamedTuple):
    """One emulated host: a netlink socket in its namespace, its interface, its port on the bridge."""

    netlink: IPRoute
    """In its namespace."""
    interface: int
    """The index of its interface there."""
    port: int
    """The index of its port on the bridge."""


class Bridge:
    """Hosts joined by a bridge that lives in a namespace of its own."""

    def __init__(self) -> None:
        self.hosts: list[EmulatedHost] = []
        self.bridge_netlink: IPRoute | None = None

    def build(self, addresses: list[str], interface: str) -> list[list[str]]:
        """Make a host per address ('10.0.0.1/24'); return the namespaces to enter to be on each."""
        # the bridge has a namespace of its own
        user_namespace = isolate()
        self.bridge_netlink = bridge_netlink = IPRoute()
        bridge_netlink.link("add", ifname="bridge", kind="bridge")
        bridge = index_of(bridge_netlink, "bridge")
        bridge_netlink.link("set", index=bridge, state="up")
        namespaces = []
        # each host has one, with a cable to the bridge
        for address in addresses:
            # this process moves on; its descriptor and socket stay behind
            unshare(CLONE_NEWNET)
            namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
            host = plug_in(bridge_netlink, bridge, namespace, f"port{len(self.hosts)}", interface)
            set_up(host, ip_interface(address))
            self.hosts.append(host)
            namespaces.append([*user_namespace, f"/proc/{os.getpid()}/fd/{namespace}"])
        return namespaces

    def shape(self, bucket: dict[str, int] | None) -> None:
        """Limit every link in both directions to a token bucket (rate, burst, limit), or to nothing."""
        assert self.bridge_netlink
        for host in self.hosts:
            shape(host.netlink, host.interface, bucket)
            shape(self.bridge_netlink, host.port, bucket)

    def traffic(self) -> list[tuple[int, int]]:
        """Bytes sent and received by each host's interface."""
        links = [next(iter(host.netlink.get_links(host.interface))) for host in self.hosts]
        counters = [link.get("IFLA_STATS64") for link in links]
        return [(counter["tx_bytes"], counter["rx_bytes"]) for counter in counters]


def isolate() -> list[str]:
    """Leave the machine's network; return the user namespace that this took where rights required one."""
    # as root; else with a user namespace, in which this user is itself
    try:
        unshare(CLONE_NEWNET)
    except PermissionError:
        # the kernel takes the map of groups only after setgroups is denied
        user, group = os.geteuid(), os.getegid()
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        return [f"/proc/{os.getpid()}/ns/user"]
    return []


def unshare(flags: int) -> None:
    """os.unshare, which Python has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def index_of(netlink: IPRoute, name: str) -> int:
    """The number by which the kernel knows interface `name`."""
    return next(iter(netlink.link_lookup(ifname=name)))


def plug_in(bridge_netlink: IPRoute, bridge: int, namespace: int, port_name: str, interface: str) -> EmulatedHost:
    """Join the current namespace, given also as a descriptor, to the bridge by a pair of veths."""
    netlink = IPRoute()
    peer = {"ifname": interface, "net_ns_fd": namespace}
    bridge_netlink.link("add", ifname=port_name, kind="veth", peer=peer)
    port = index_of(bridge_netlink, port_name)
    bridge_netlink.link("set", index=port, master=bridge, state="up")
    return EmulatedHost(netlink, index_of(netlink, interface), port)


def set_up(host: EmulatedHost, address: IPv4Interface | IPv6Interface) -> None:
    """Give a host its address and its one route, with CUBIC.

    Some machines default to BBR, whose speed at a token bucket varies, and refuse the sysctl in a
    namespace; a route's own choice is always allowed.
    """
    netlink, interface = host.netlink, host.interface
    ip, subnet = str(address.ip), address.network
    # loopback, address, and a route with CUBIC
    netlink.link("set", index=index_of(netlink, "lo"), state="up")
    netlink.addr("add", index=interface, address=ip, prefixlen=subnet.prefixlen)
    netlink.link("set", index=interface, state="up")
    kind = {"scope": RT_SCOPE_LINK, "proto": "kernel", "metrics": {"cc_algo": "cubic"}}
    netlink.route("replace", dst=str(subnet), oif=interface, prefsrc=ip, **kind)


def shape(netlink: IPRoute, interface: int, bucket: dict[str, int] | None) -> None:
    """Limit what leaves `interface`. Packets that wait there are dropped, and TCP sends them again.

    Changing a bucket in place would keep them, but one longer than a new, shallower bucket would
    then block the queue for ever.
    """
    # the old bucket goes, with what waits in it; then the new one
    if any(qdisc.get("TCA_KIND") == "tbf" for qdisc in netlink.get_qdiscs(interface)):
        netlink.tc("del", index=interface, parent=TC_H_ROOT)
    if bucket:
        netlink.tc("add", "tbf", index=interface, **bucket)


def requests(owner_pid: int) -> Iterator[list[Any]]:
    """Requests until the owner closes stdin or dies.

    Its death is watched for on its own, as a child that it forked may hold the other end of stdin.
    """
    # not by os.pidfd_open, which several builds of Python and kernels before 5.3 lack
    while os.getppid() == owner_pid:
        if not select.select([sys.stdin], [], [], POLL_S)[0]:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        yield json.loads(line)


def main() -> None:
    """Serve the process whose id is the one argument."""
    bridge = Bridge()
    for method, *arguments in requests(int(sys.argv[1])):
        try:
            # one answer for each request, so that the caller never waits in vain
            answer = {"result": getattr(bridge, method)(*arguments)}
        except (OSError, NetlinkError) as error:
            answer = {"error": str(error), "code": getattr(error, "errno", None) or getattr(error, "code", None)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
