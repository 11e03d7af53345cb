"""Where things may live."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "gradwire"
MAY_USE_THE_NETWORK = {"transports/members.py", "transports/process_group.py", "torch_private.py"}


def test_only_transports_front_ends_and_the_lab_use_torch_distributed():
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "torch.distributed" in path.read_text() and path.parent.name not in {"frontends", "lab", "workloads"}
    }
    assert users <= MAY_USE_THE_NETWORK, users - MAY_USE_THE_NETWORK
