"""The emulated network: its speed, its counters, and that nothing of it outlives its owner."""

import io
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.exceptions import NetlinkError

from gradwire.lab.launch.launch import launch
from gradwire.lab.network import network_process
from gradwire.lab.network.link import Link
from gradwire.lab.network.network import Network, NetworkUnavailable
from gradwire.lab.network.traffic import interface_traffic
from gradwire.wire import ETHERNET
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(REPOSITORY)}
MEGABIT = Link.parse("100mbit")

# All-reduces 4 MB as often as asked, and checks what this rank sees of it in its own interface's counters.
RANK = """
import os, sys, time, torch, torch.distributed as dist
from gradwire.lab.network.traffic import interface_traffic
rounds = int(sys.argv[1])
dist.init_process_group("gloo")
for _ in range(rounds):
    total = torch.ones(1_000_000)
    dist.all_reduce(total)
    assert total.eq(dist.get_world_size()).all()
while interface_traffic(os.environ["GLOO_SOCKET_IFNAME"]).sent_bytes <= rounds * 4_000_000:
    time.sleep(0.01)  # the last of it may still wait in the link's queue; the launcher's timeout ends this
dist.destroy_process_group()
"""

# Runs RANK on two hosts and prints the user and what every interface sent and received meanwhile.
ALL_REDUCE = """
import json, os, sys
from gradwire.lab.launch.launch import launch
from gradwire.lab.network.link import Link
from gradwire.lab.network.network import Network
with Network(2, Link.parse("100mbit")) as network:
    before = network.counters()
    launch(["-c", sys.argv[1], "1"], 2, network=network, timeout_s=60)
    moved = [new - old for pair in zip(before, network.counters()) for old, new in zip(*pair)]
print(json.dumps([os.geteuid(), moved]))
"""

# Prints how the interface of this namespace is shaped.
SHAPE = """
import json
from pyroute2 import IPRoute
netlink = IPRoute()
index = netlink.link_lookup(ifname="eth0")[0]
buckets = [q.get("TCA_OPTIONS") for q in netlink.get_qdiscs(index) if q.get("TCA_KIND") == "tbf"]
route = netlink.get_routes(family=2, table=254)[0]
rate = buckets[0].get("TCA_TBF_PARMS")["rate"] if buckets else None
print(json.dumps([rate, route.get("RTA_METRICS").get("RTAX_CC_ALGO")]))
"""

# Prints why there is no network.
REFUSED = """
from gradwire.lab.network.network import Network, NetworkUnavailable
try:
    Network(1, None).__enter__()
except NetworkUnavailable as reason:
    print(reason)
"""

# Says which process in which namespace it is, in one write as the ranks share stdout, and sleeps.
SLEEP = """
import os, time
os.write(1, f"{os.getpid()} {os.readlink('/proc/self/ns/net')}\\n".encode())
time.sleep(60)
"""

# Runs SLEEP on two hosts.
OWNER = """
import sys
from gradwire.lab.launch.launch import launch
from gradwire.lab.network.link import Link
from gradwire.lab.network.network import Network
with Network(2, Link.parse("100mbit")) as network:
    launch(["-c", sys.argv[1]], 2, network=network)
"""


@pytest.fixture(scope="module")
def rights() -> None:
    try:
        with Network(1, None):
            pass
    except NetworkUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def network(rights: None) -> Iterator[Network]:
    with Network(2, MEGABIT) as network:
        yield network


def is_hidden(folder: Path) -> bool:
    return not folder.stat().st_mode & stat.S_IXOTH


def as_nobody(stash: Path) -> list[str]:
    """A command prefix that becomes nobody, who in its own mount namespace can read Python and this code."""
    needed = sorted({Path(sys.base_prefix), Path(sys.prefix), REPOSITORY})
    hidden = {next(filter(is_hidden, reversed(path.parents)), None) for path in needed} - {None}
    stashed = {path: stash / str(number) for number, path in enumerate(needed)}
    for folder in stashed.values():
        folder.mkdir()
    script = ["set -e", *(f"mount --bind {path} {folder}" for path, folder in stashed.items())]
    script += [f"mount -t tmpfs -o mode=755 tmpfs {folder}" for folder in hidden]
    script += [f"mkdir -p {path}; mount --bind {folder} {path}" for path, folder in stashed.items()]
    script += [
        f"cd {REPOSITORY}",
        'exec setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp "$@"',
    ]
    return ["unshare", "--mount", "sh", "-c", "\n".join(script), "sh"]


def users_of(namespaces: set[str]) -> list[str]:
    """What in /proc is in, or holds a descriptor of, one of the namespaces ('net:[4026532178]')."""
    found = []
    for link in [*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")]:
        try:
            if os.readlink(link) in namespaces:
                found.append(str(link))
        except OSError:
            continue  # the process has ended, or is another user's
    return found


def shape_of(network: Network) -> tuple[float | None, str]:
    """The rate in bit/s that limits host 1, and its congestion control, as a process there sees them."""
    nsenter = REPOSITORY / "gradwire/lab/network/nsenter.py"
    prefix = [sys.executable, "-P", nsenter, str(os.getpid()), *network.namespaces(1), "--"]
    rate_bytes, congestion = json.loads(subprocess.check_output([*prefix, sys.executable, "-c", SHAPE]))
    return rate_bytes and rate_bytes * 8, congestion


@pytest.mark.parametrize("text", ["500kbit", "100mbit", "1gbit", "2.5gbit", "25gbit"])
def test_link_prints_what_it_read(text: str) -> None:
    assert str(Link.parse(text)) == text


@given(st.integers(1, 10**12))
def test_link_survives_text_to_ten_digits(bits_per_second: int) -> None:
    again = Link.parse(str(Link(bits_per_second * 1000)))
    assert again.bits_per_second == pytest.approx(bits_per_second * 1000, rel=1e-9)


@pytest.mark.parametrize("text", ["", "100", "mbit", "100mb", "-1mbit", "0gbit", "0.007kbit", "1 gbit/s", "nanmbit"])
def test_bad_link_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.*is not a link: write a rate.*$"):
        Link.parse(text)


def test_a_link_carries_as_many_full_frames_as_ethernet() -> None:
    for text, bytes_per_second in (("100mbit", 12.5e6), ("10gbit", 1.25e9)):
        frames = Link.parse(text).counted_bytes_per_second / 1514  # of headers and payload
        assert frames == pytest.approx(bytes_per_second / (8 + 1518 + 12), rel=1e-6)  # preamble, frame, gap
        assert frames * 1448 == pytest.approx(ETHERNET * bytes_per_second, rel=1e-6)
    assert Link.parse("0.008kbit").counted_bytes_per_second == 1


def test_token_bucket_is_a_millisecond_deep_and_never_below_a_few_packets() -> None:
    assert Link.parse("1gbit").bucket["burst"] == 125_000
    assert Link.parse("1gbit").bucket["limit"] == 6_250_000
    assert MEGABIT.bucket["burst"] == 16 * 1024
    assert Link.parse("1mbit").bucket["limit"] == 256 * 1024


@pytest.mark.parametrize("hosts", [0, 255])
def test_number_of_hosts_is_checked(hosts: int) -> None:
    with pytest.raises(ValueError, match="1 to 254 hosts"):
        Network(hosts, None)


def test_unknown_interface_is_named() -> None:
    with pytest.raises(ValueError, match="no network interface 'nope0'"):
        interface_traffic("nope0")


def test_ranks_move_their_bytes_although_the_link_changes(network: Network) -> None:
    network.set_link(Link.parse("1gbit"))
    before = network.counters()

    def slow_down() -> None:
        wait_until(lambda: network.counters()[0].sent_bytes > 10_000_000)
        network.set_link(Link.parse("250mbit"))

    slowing = Thread(target=slow_down)
    slowing.start()
    launch(["-c", RANK, "15"], 2, network=network, env={"PYTHONPATH": str(REPOSITORY)}, timeout_s=60)
    slowing.join()
    for old, new in zip(before, network.counters(), strict=True):
        # a ring all-reduce on two ranks sends, and receives, each rank's 4 MB once
        assert new.sent_bytes - old.sent_bytes == pytest.approx(60e6, rel=0.15)
        assert new.received_bytes - old.received_bytes == pytest.approx(60e6, rel=0.15)


@pytest.mark.long
@pytest.mark.usefixtures("rights")
def test_an_ordinary_user_gets_the_same(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user, and this user is an ordinary one")
    command = [*as_nobody(tmp_path), sys.executable, "-c", ALL_REDUCE, RANK]
    euid, moved = json.loads(subprocess.check_output(command, cwd=REPOSITORY, env=ENVIRONMENT))
    assert euid == 65534
    assert moved == [pytest.approx(4e6, rel=0.15)] * 4


def test_link_changes_in_place(network: Network) -> None:
    assert shape_of(network) == (8 * 12_304_941, "cubic")
    network.set_link(Link.parse("25gbit"))
    assert shape_of(network) == (None, "cubic")
    network.set_link(None)
    network.set_link(Link.parse("500kbit"))
    assert shape_of(network) == (8 * 61_524, "cubic")


def test_networks_do_not_meet(network: Network) -> None:
    with Network(2, Link.parse("1gbit")) as other:
        assert network.address(1) == other.address(1)
        assert shape_of(network)[0] == 8 * 12_304_941
        assert shape_of(other)[0] == 8 * 123_049_414


@pytest.mark.usefixtures("rights")
def test_without_rights_one_clear_line_says_so() -> None:
    drop = 'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set -all --inh-caps -all "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", drop, "sh"]
    command += [sys.executable, "-c", REFUSED]
    message = subprocess.check_output(command, cwd=REPOSITORY, env=ENVIRONMENT, text=True)
    assert re.fullmatch(
        r"no emulated network: .*(it needs root or user namespaces|this machine forbids it by).*\n", message
    )


@pytest.mark.parametrize(("code", "advised"), [(1, True), (28, True), (95, False), (None, False)])
def test_only_an_error_of_rights_says_that_rights_are_missing(code: int | None, advised: bool) -> None:
    network = Network(1, None)
    answers = io.StringIO(json.dumps({"error": "it failed", "code": code}) + "\n")
    network._process = SimpleNamespace(stdin=io.StringIO(), stdout=answers)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(NetworkUnavailable) as refused:
        network.counters()
    assert (str(refused.value) != "no emulated network: it failed") == advised


@pytest.mark.parametrize(("error", "code"), [(OSError(), None), (OSError(1, "no"), 1), (NetlinkError(28, "no"), 28)])
def test_its_process_answers_whatever_fails(
    error: Exception, code: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: object) -> None:
        raise error

    monkeypatch.setattr(network_process.Bridge, "traffic", fail)
    monkeypatch.setattr(network_process, "requests", lambda owner: [["traffic"]])
    monkeypatch.setattr(sys, "argv", ["", "1"])
    network_process.main()
    assert json.loads(capsys.readouterr().out)["code"] == code


def test_its_process_serves_its_owner_alone_where_python_lacks_pidfd_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w") as owner:
        monkeypatch.setattr(sys, "stdin", stdin)
        print('["traffic"]', file=owner, flush=True)
        asked = network_process.requests(os.getppid())
        assert next(asked) == ["traffic"]
        monkeypatch.setattr(os, "getppid", lambda: 1)  # it was killed
        assert list(asked) == []


@pytest.mark.usefixtures("rights")
def test_an_error_inside_ends_the_process_that_owns_the_network() -> None:
    with pytest.raises(KeyError), Network(1, None) as broken:  # noqa: PT012
        path = broken.namespaces(0)[-1]
        raise KeyError
    assert not Path(path).exists()


@pytest.mark.usefixtures("rights")
@pytest.mark.parametrize("ordinary", [pytest.param(False, marks=pytest.mark.long), True])
def test_nothing_outlives_a_killed_owner(ordinary: bool, tmp_path: Path) -> None:
    if ordinary and os.geteuid() != 0:
        pytest.skip("only root can become another user, and this user is an ordinary one")
    user = as_nobody(tmp_path) if ordinary else []
    command = [*user, sys.executable, "-c", OWNER, SLEEP]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout
        ranks = dict(owner.stdout.readline().split() for _ in range(2))
        namespaces = set(ranks.values())
        assert len(namespaces) == 2
        assert {f"/proc/{pid}/ns/net" for pid in ranks} < set(users_of(namespaces))
        owner.kill()
    assert wait_until(lambda: not users_of(namespaces))
