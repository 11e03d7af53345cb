"""Image sets are downloaded by torchvision's code, and where that cannot be one line says so."""

import hashlib
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gradwire.cli import main
from gradwire.lab.workloads import Cifar10, Mnist
from gradwire.lab.workloads import download as sets
from tests.support.small_files import write_cifar10, write_idx


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and its address."""
    home = tmp_path / "served"
    home.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(home))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield home, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_sets_are_downloaded_and_held_against_their_checksums(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not here", exc_type=ImportError)
    home, address = served
    files = sorted(write_idx(home, zipped=True).glob("*.gz"))
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/", address])
    monkeypatch.setattr(datasets.MNIST, "resources", [(file.name, md5(file)) for file in files])
    assert main(["download", "mnist", str(tmp_path / "mnist")]) == 0
    assert capsys.readouterr().out == f"--data {tmp_path / 'mnist'}\n"
    assert len(Mnist(folder=tmp_path / "mnist").splits[0].labels) == 320
    # CIFAR is an archive with a folder
    (tmp_path / "cifar").mkdir()
    with tarfile.open(home / "cifar.tar.gz", "w:gz") as archive:
        archive.add(write_cifar10(tmp_path / "cifar"), "inside")
    monkeypatch.setattr(sets, "_TORONTO", address)
    monkeypatch.setitem(sets._CIFAR, "cifar10", ("cifar.tar.gz", md5(home / "cifar.tar.gz"), "inside"))
    assert len(Cifar10(folder=sets.download("cifar10", tmp_path / "new")).splits[0].labels) == 300
    monkeypatch.setitem(sets._CIFAR, "cifar10", ("cifar.tar.gz", "0" * 32, "inside"))
    with pytest.raises(OSError, match=r"cifar10 cannot be downloaded: .*put its files into"):
        sets.download("cifar10", tmp_path / "other")


def test_without_torchvision_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert main(["download", "cifar10", str(tmp_path)]) == 2
    assert main(["download", "cifar1", str(tmp_path)]) == 2
    missing, unknown = capsys.readouterr().err.splitlines()
    assert "torchvision downloads, which cannot be imported" in missing
    assert "install the one for this torch, or put the files into" in missing
    assert "did you mean cifar10?" in unknown
