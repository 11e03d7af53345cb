"""Scripts of benchmarks/ start: what they import is there, also inside functions, and they show their help."""

import ast
import runpy
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [path.relative_to(ROOT) for path in sorted(ROOT.glob("benchmarks/**/*.py"))]
OWN = ("benchmarks", "gradwire", "tests")


@pytest.mark.parametrize("path", FILES, ids=str)
def test_what_a_script_imports_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OWN:
            module = import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), ast.unparse(node)


SCRIPTS = [path for path in FILES if len(path.parts) == 3 and "__main__" in (ROOT / path).read_text()]
"""Those that a user starts: not the modules of their processes and ranks."""


@pytest.mark.parametrize("path", [path for path in SCRIPTS if not path.stem.endswith("_rank")], ids=str)
def test_a_script_shows_its_help(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # or it would measure, and write over what is kept
    assert "parse_args()" in (ROOT / path).read_text()
    if path.stem == "faults_beside":
        pytest.importorskip("torchft.coordination")
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
