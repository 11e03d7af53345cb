"""Where things may live."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "gradwire"
MAY_USE_THE_NETWORK = {
    "transports/members.py",
    "transports/process_group.py",
    "transports/torch_store.py",
    "torch_private.py",
}


def test_only_transports_front_ends_and_the_lab_use_torch_distributed():
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "torch.distributed" in path.read_text() and path.parent.name not in {"frontends", "lab", "workloads"}
    }
    assert users <= MAY_USE_THE_NETWORK, users - MAY_USE_THE_NETWORK


def test_no_module_is_longer_than_300_lines():
    lengths = {path.name: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 300} == {}


def test_only_ops_and_the_executor_ask_for_the_kind_of_device():
    askers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if ".type ==" in path.read_text() or ".type !=" in path.read_text()
    }
    assert {path for path in askers if not path.startswith(("ops/", "lab/"))} == {"runtime/executor.py"}
