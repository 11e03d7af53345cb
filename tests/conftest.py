"""Before anything is imported: Triton's kernels run in its interpreter, for there is no GPU. Output is that of a file,
whoever runs the tests, whatever the terminal's width that pytest-xdist hands on. And what is started can be
interrupted, which a job in the background could not."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["TRITON_INTERPRET"] = "1"
os.environ.pop("COLUMNS", None)
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")

if find_spec("triton"):
    import tests.support.interpreted  # noqa: F401


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that the lab launches are forked from the warm Python."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    from tests.support.warm import forked_rank

    monkeypatch.setattr(SubprocessHandler, "_popen", forked_rank)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """torch.distributed of this process alone."""
    from tests.support.ranks import one_rank

    with one_rank(tmp_path):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported or collected is garbage; to look for it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collectstart() -> None:
    _seed()


def pytest_runtest_setup() -> None:
    _seed()


def _seed() -> None:
    """So that what a test or its file draws of torch's own generator does not depend on the tests before."""
    from torch import default_generator

    default_generator.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with processes first, which take longest."""
    items.sort(key=lambda item: "processes" not in item.path.parts)
